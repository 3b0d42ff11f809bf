"""The one place where primitives meet engines: it queues, places, cancels and fails them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weftline.contract.errors import EngineUnavailable, UnknownModel, UnknownStore, WeftlineError
from weftline_engine import api
from weftline_server.prompt.prompter import Prompter
from weftline_server.schedule import model_names
from weftline_server.schedule.delivery import Delivery
from weftline_server.schedule.engines.fleet import Fleet
from weftline_server.schedule.engines.member import EngineState, Member, Work
from weftline_server.schedule.memory.keeper import Memory, Occupancy
from weftline_server.schedule.memory.lengths import Lengths
from weftline_server.schedule.memory.verbs import perform
from weftline_server.schedule.queue import UNAVAILABLE_S, Queue
from weftline_server.schedule.rounds import PlacementRounds
from weftline_server.schedule.sessions import Sent, Sessions

log = logging.getLogger("weftline.dispatcher")

EXPIRE_EVERY_S = 1.0


def unknown_resource(what: str, name: str | None, found: Sequence[str]) -> WeftlineError:
    """The error for a step that no engine of this server runs. `what` is the engine's table in the
    configuration.
    """
    error = UnknownStore if what == "store" else UnknownModel
    if not found:
        return error(
            f"this server has no {what}: start it with a table [[{what}]] in its configuration",
            param=what,
        )
    return error(f"there is no {what} {name!r}: use one of {', '.join(found)}", param=what)


class Dispatcher:
    """The scheduler's face to the rest of the server.

    `engines` makes each engine by name, `policy` is one of placement's POLICIES, and `without`
    names parts of Memory to switch off.
    """

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        policy: str,
        clock: Callable[[], float] = time.monotonic,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._fleet = Fleet(engines, clock)
        self._policy = policy
        self._now = clock
        self._without = without
        self.lengths = None if "length_prediction" in without else Lengths()
        self._queue = Queue()
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
        self._rounds = rounds = PlacementRounds(fleet, queue, memory, sessions, self._policy, now)
        learn = None if self.lengths is None else self.lengths.learn
        self._delivery = Delivery(fleet, queue, memory, sessions, rounds.soon, now, learn)
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
    def healthy(self) -> bool:
        """Whether every served model has an engine that takes work."""
        return self._fleet.healthy

    @property
    def states(self) -> dict[str, EngineState]:
        """The state of each engine by name."""
        return {member.name: member.state for member in self._fleet.members.values()}

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

    @property
    def models(self) -> list[str]:
        """The models that some engine generates with, the default one first."""
        return list(self._fleet.models)

    def model(self, name: str | None) -> str:
        """Return the served model that `name` means. Raises UnknownModel, EngineUnavailable."""
        models = self._fleet.models
        if not models:
            raise EngineUnavailable("no engine is ready yet", retry_after_s=1.0)
        if name in (None, "", "default"):
            return models[0]
        assert name is not None
        found = model_names.find(name, models)
        if found is None:
            served = ", ".join(models)
            raise UnknownModel(
                f"no engine serves model {name[:256]!r}: use one of {served}", param="model"
            )
        return found

    def resource(self, kind: str, what: str, name: str | None) -> str:
        """Return the embedder, reranker or store that runs ops of `kind`; None means the first.
        `what` is its table in the configuration.

        One on demand starts now, and not when its first op is ready. Raises UnknownModel or
        UnknownStore.
        """
        known = self._fleet.resources(kind)
        found = known[0] if name is None and known else name
        if found is None or found not in known:
            raise unknown_resource(what, name, known)
        self._fleet.wake(found, kind)
        return found

    @property
    def tools(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The tools that engines run, by name: the engine's name, and what it says of the tool."""
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for member in self._fleet.members.values():
            if (description := member.description) is not None:
                for told in description.tools:
                    found.setdefault(str(told["name"]), (description.model, told))
        return found

    def prompter(self, model: str) -> Prompter:
        """Return what renders and tokenises prompts for a served model."""
        return self._fleet.prompters[model]

    def enqueue(self, work: Work) -> None:
        """Queue a primitive. It is sent in this turn of the loop if an engine has room."""
        self._queue.add(work)
        self._fleet.wake(work.model, work.item.kind)
        now = self._now()
        verbs = self.memory.queued(work.op, work.model, work.stays, now, work.expected)
        perform(verbs, self._fleet.members)
        self._rounds.soon()

    def feed(self, op: str, part: api.Fed, last: bool) -> bool:
        """Append to the prompt of an open op, to the text of a tool's arguments, or to its items.

        Return False if there is no such op (any more)."""
        if self._queue.feed(op, part, last):
            self._rounds.soon()
            return True
        for member in self._fleet.members.values():
            if (work := member.ops.works.get(op)) is None:
                continue
            assert member.engine is not None, "it runs the op"
            member.engine.feed(op, work.fed_so_far, part, last)
            member.hold(work.fed(part, last))
            if last and (work.item.has_prompt or work.op.streams):
                sent = Sent(member.name, self._now(), member.node, work.why)
                self._sessions.outcome(work.primitive, sent)
            return True
        return False

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

    def forget(self, application: str) -> None:
        """Free all contexts that the engines keep for an application that has ended."""
        self._queue.withdrawn.discard(application)
        perform(self.memory.closed(application), self._fleet.members)
        if self._queue:
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


def withdraw(dispatcher: Dispatcher, application: str) -> None:
    """Start nothing more of an application that ends. What waits is taken back one by one, and then
    the application is forgotten.
    """
    dispatcher._queue.withdrawn.add(application)
