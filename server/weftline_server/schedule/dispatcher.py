"""The one place where primitives meet engines: it queues, places, cancels and fails them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from weftline.contract.errors import EngineUnavailable
from weftline_engine import api
from weftline_server.schedule.catalogue import Catalogue
from weftline_server.schedule.delivery import Delivery
from weftline_server.schedule.engines.fleet import Fleet
from weftline_server.schedule.engines.member import EngineState, Member, Work
from weftline_server.schedule.lengths import Lengths
from weftline_server.schedule.memory.keeper import Memory, Occupancy
from weftline_server.schedule.memory.verbs import perform
from weftline_server.schedule.placement.shares import Served
from weftline_server.schedule.queue import UNAVAILABLE_S, Queue
from weftline_server.schedule.rounds import PlacementRounds
from weftline_server.schedule.session_protocol import Sent, Sessions
from weftline_server.schedule.turns import Pace

log = logging.getLogger("weftline.dispatcher")

EXPIRE_EVERY_S = 1.0


class Dispatcher:
    """The scheduler's face to the rest of the server. `catalogue` says what the engines serve.

    `engines` makes each engine by name, `policy` is one of placement's POLICIES, and `without`
    names parts of Memory to switch off. `served` counts what tenants have got, by their salts.
    """

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        policy: str,
        clock: Callable[[], float] = time.monotonic,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._fleet = Fleet(engines, clock)
        self.catalogue = Catalogue(self._fleet)
        self._policy = policy
        self._now = clock
        self._without = without
        self.served = Served()
        self.pace = Pace()
        self.lengths = None if "length_prediction" in without else Lengths()
        self._queue = Queue(policy)
        self._sessions: Sessions  # this and the next three are set by `start`
        self.memory: Memory
        self.occupancy: Callable[[], Occupancy] = Occupancy  # a cluster asks before the start
        self._rounds: PlacementRounds
        self._delivery: Delivery
        self._expiring: asyncio.Task[None] | None = None

    async def start(self, sessions: Sessions) -> None:
        """Start every engine, and report the outcome of primitives to `sessions` from now on.

        Raises EngineDied with a reason for the user if an engine does not load.
        """
        fleet, queue, now = self._fleet, self._queue, self._now
        self._sessions = sessions
        self.memory = memory = Memory(sessions.outlook, self._without)
        self.occupancy = memory.occupancy
        self._rounds = rounds = PlacementRounds(
            fleet, queue, memory, sessions, self._policy, now, self.served
        )
        self._delivery = Delivery(fleet, queue, memory, sessions, rounds.soon, now, self.lengths)
        await fleet.start(self._delivery)
        self._expiring = asyncio.create_task(self._expire_forever())

    async def close(self) -> None:
        """Stop the supervision and every engine."""
        if self._expiring is not None:
            self._expiring.cancel()
        await self._fleet.close()

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs elsewhere. Raises InvalidRequest if it does not fit."""
        await self._fleet.join(name, engine, description)

    @property
    def members(self) -> Sequence[Member]:
        """The engines, the configured ones first."""
        return tuple(self._fleet.members.values())

    @property
    def queued(self) -> int:
        """How many primitives wait for an engine."""
        return len(self._queue)

    def queued_of(self, salt: str | None, model: str | None = None) -> int:
        """How many primitives of the tenant with this salt, or of all, wait for an engine.

        With a `model`, only those for it count.
        """
        if model is not None:
            return self._queue.waiting(model, salt)
        return len(self._queue) if salt is None else self._queue.of(salt)

    def enqueue(self, work: Work) -> None:
        """Queue a primitive. It is sent in this turn of the loop if an engine has room."""
        self._queue.add(work)
        self._fleet.wake(work.model, work.item.kind)
        self._remember(work)
        self._rounds.soon()

    def _remember(self, work: Work, placed: bool = False) -> None:
        """Tell memory of a call that waits, or that was `placed` as an open op."""
        op, now, stays, guessed = work.op, self._now(), work.stays, work.guessed
        verbs = self.memory.queued(op, work.model, stays, now, work.expected, guessed, placed)
        perform(verbs, self._fleet.members)

    def feed(self, op: str, part: api.Fed, last: bool) -> bool:
        """Append to the prompt of an open op, to the text of a tool's arguments, or to its items.

        Return False if there is no such op (any more)."""
        if (queued := self._queue.feed(op, part, last)) is not None:
            if last and self.memory.early.end(queued.op):
                self._remember(queued)
            self._rounds.soon()
            return True
        member = self._fleet.running(op)
        if member is None:
            return False
        assert member.engine is not None, "it runs the op"
        work = member.ops.works[op]
        fed = work.fed(part, last)
        if last and self.memory.early.end(fed.op):
            self._remember(fed, placed=True)
        member.engine.feed(op, work.fed_so_far, part, last)
        member.hold(fed)
        if last and (work.item.has_prompt or work.op.streams):
            sent = Sent(member.name, self._now(), member.node, work.why)
            self._sessions.outcome(work.primitive, sent)
        return True

    def fill(self, engine: str, model: str, op: api.Op) -> None:
        """Compute a prefix that a prompt will have on this engine, so that it is in the cache, if
        there is room. An engine that several servers share computes none.
        """
        member = self._fleet.members.get(engine)
        if member is None or member.engine is None or member.others.report is not None:
            return
        if member.state is EngineState.READY and self.memory.own_memory.may_fill(model, op):
            member.fills.add(op.id)
            member.engine.submit(op)

    def advise(self) -> None:
        """Take the new hints of what waits and of what runs in this turn of the loop."""
        self._rounds.soon()

    def cancel(self, op: str) -> None:
        """Take a primitive back. Its session gets no more reports about it."""
        if (queued := self._queue.remove(op)) is not None:
            self.memory.dropped(None, queued.op, self._now())
            return
        for member in self._fleet.members.values():
            if (work := member.release(op)) is not None and member.engine:
                member.engine.cancel(op)
                member.prefixes.lost(work.op.context)
                verbs = self.memory.dropped(member.name, work.op, self._now())
                perform(verbs, self._fleet.members)
                self._rounds.soon()
                return
        # An op that paused is on no engine, but its context, which has its id, is kept.
        perform(self.memory.abandoned(op), self._fleet.members)

    def withdraw(self, application: str) -> None:
        """Start nothing more of an application that ends. What waits is taken back one by one, and
        then the application is forgotten.
        """
        self._queue.withdraw(application)

    def forget(self, application: str) -> None:
        """Free all contexts that the engines keep for an application that has ended."""
        self._queue.forget(application)
        perform(self.memory.closed(application), self._fleet.members)
        if self._queue or any(one.others.report for one in self._fleet.members.values()):
            self._rounds.soon()

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                self.expire()
            except Exception:  # without this task no call would ever expire again
                log.exception("the calls without an engine could not be searched")
            if self._queue:
                self._rounds.soon()  # a call may have waited so long that it may start now

    def expire(self) -> None:
        """Fail the calls whose model has had no engine for UNAVAILABLE_S."""
        self._fleet.note_gaps()
        for work in self._queue.take_expired(self._fleet, self._now()):
            why = "; ".join(f"{s.name}: {s.last_error}" for s in self.members if s.last_error)
            self._delivery.fail(
                work,
                EngineUnavailable.__name__,
                f"no engine has served {work.model} for {UNAVAILABLE_S:g} s ({why})",
            )
