"""Passes engine events to the sessions, and gives failed ops another attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weftline.contract.errors import EngineFailed
from weftline_engine import api
from weftline_server.schedule.engines.fleet import Fleet
from weftline_server.schedule.engines.member import Member, Work
from weftline_server.schedule.lengths import Lengths
from weftline_server.schedule.memory.keeper import Memory
from weftline_server.schedule.memory.verbs import FreeContext, perform
from weftline_server.schedule.memory.waste import Load
from weftline_server.schedule.queue import Queue
from weftline_server.schedule.session_protocol import Sessions

MAX_ATTEMPTS = 3
# A call may see more engines die: two beside other calls, and two while it runs alone. See
# `suspects`.
MAX_DEATHS = 4
# Events of an engine as a whole. An op that its event names may have ended.
_OF_THE_ENGINE = (api.ContextMoved, api.Occupied, api.Elsewhere, api.Availability)


class Delivery:
    """The fleet's watcher. `place_soon` asks for a placement round."""

    def __init__(
        self,
        fleet: Fleet,
        queue: Queue,
        memory: Memory,
        sessions: Sessions,
        place_soon: Callable[[], None],
        clock: Callable[[], float],
        lengths: Lengths | None = None,
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._memory = memory
        self._sessions = sessions
        self._place_soon = place_soon
        self._now = clock
        self._lengths = lengths

    def ready(self, member: Member) -> None:
        """Note the KV pool of an engine that takes work now, and ask for a placement round."""
        assert member.description is not None, "a ready engine has described itself"
        if member.takes_prompts:
            counts = api.Capability.USAGE in member.description.capabilities
            told = member.description
            self._memory.has_pool(
                member.name, told.kv_tokens, counts, told.kv_costs, told.host_tokens
            )
        self._place_soon()

    def heard(self, member: Member, events: Sequence[api.Event]) -> None:
        """Pass an engine's events on. Drop events of ops that its record no longer has."""
        changed = False  # so that work may be placed that had no room
        for event in events:
            if isinstance(event, _OF_THE_ENGINE):
                changed |= self._of_engine(member, event)
                continue
            if event.op in member.fills and isinstance(event, (api.Finished, api.Failed)):
                member.fills.discard(event.op)
                perform([FreeContext(member.name, event.op)], self._fleet.members)
                continue
            work = member.ops.works.get(event.op)
            # Events of an old attempt, or of an op that was cancelled meanwhile, are dropped.
            if work is None or event.attempt != work.op.attempt:
                continue
            if isinstance(event, api.Part):
                member.ops.answer(event.op, event.tokens)
                self._sessions.outcome(work.primitive, event)
            elif isinstance(event, api.Items):
                member.delivered(event.op, event.offset + len(event.values))
                self._sessions.outcome(work.primitive, event)
            elif isinstance(event, (api.Finished, api.Paused)):
                changed = True
                self._finished(member, work, event)
            elif isinstance(event, api.Failed):
                changed = True
                self._failed(member, work, event)
        if changed:
            self._place_soon()

    def _of_engine(self, member: Member, event: api.Event) -> bool:
        """Note what an engine says of itself. Return whether work may be placed that had no
        room."""
        if isinstance(event, api.Occupied):
            return member.others.occupy(event.tokens)
        if isinstance(event, api.Elsewhere):
            # Without calls that wait only a new grant matters: it has to be acknowledged.
            known = member.others.report
            is_new = known is None or known.grant != event.grant
            member.used_elsewhere(event)
            return is_new or len(self._queue) > 0
        # The op of such an event may have ended and been freed: only its context counts.
        if isinstance(event, api.ContextMoved):
            member.prefixes.moved(event.context, event.residency, event.tokens, event.places)
        return False

    def down(self, member: Member) -> None:
        """Give every op of a dead engine another attempt, or fail it with the engine's reason."""
        self._memory.lost(member.name)
        member.fills.clear()
        for work in list(member.ops.works.values()):
            answered = member.ops.is_answered(work.op.id)
            member.release(work.op.id)
            work = replace(work, deaths=work.deaths + 1)
            if not self._retry(work, answered, MAX_DEATHS):
                self.fail(
                    work,
                    EngineFailed.__name__,
                    f"engine {member.name} died while it ran this call: {member.last_error}",
                )
        member.prefixes.clear()
        self._place_soon()

    def waits(self, member: Member) -> bool:
        """Whether the queue holds work of the engine's model, of a kind that it takes."""
        assert member.description is not None, "it has described itself"
        model = member.description.model
        return any(one.model == model and one.item.kind in member.kinds for one in self._queue)

    def fail(self, work: Work, error: str, message: str) -> None:
        """End a primitive that no engine has any more; `error` names a type of weftline.errors."""
        now = self._now()
        self._memory.dropped(None, work.op, now)
        failed = api.Failed(
            op=work.op.id,
            attempt=work.op.attempt,
            sequence=0,
            time=now,
            error=error,
            message=message,
        )
        self._sessions.outcome(work.primitive, failed)

    def _finished(self, member: Member, work: Work, event: api.Finished | api.Paused) -> None:
        """Release an op that succeeded or paused. Another op continues a paused op's context."""
        written = member.ops.written(work.op.id)
        member.ops.totals.ended(work.op.id, event.usage)
        member.release(work.op.id)
        if self._lengths is not None and work.clues is not None and work.op.sampling is not None:
            bound, made = work.op.sampling.max_tokens, event.usage.output_tokens
            self._lengths.learn(work.op.salt, work.clues, bound, made)
        tokens = event.usage.prompt_tokens + event.usage.output_tokens
        # The note holds until the engine reports the context itself.
        member.prefixes.moved(work.op.context, api.Residency.RESIDENT, tokens)
        # Report to the session first, because its waiting calls decide about the context.
        self._sessions.outcome(work.primitive, event)
        memory, id, op, now = self._memory, work.primitive, work.op, self._now()
        if isinstance(event, api.Paused):
            beside = member.load()
            load = Load(beside.running, beside.held)
            verbs = memory.paused(member.name, id, op, event.usage, now, written, load)
        else:
            verbs = memory.finished(member.name, id, op, event.usage, now)
        perform(verbs, self._fleet.members)

    def _failed(self, member: Member, work: Work, event: api.Failed) -> None:
        answered = member.ops.is_answered(work.op.id)
        member.release(work.op.id)
        member.prefixes.lost(work.op.context)
        if event.retryable and self._retry(work, answered, MAX_ATTEMPTS):
            if work.item.has_prompt:
                perform([FreeContext(member.name, work.op.context)], self._fleet.members)
            return
        self._sessions.outcome(work.primitive, event)
        perform(self._memory.dropped(member.name, work.op, self._now()), self._fleet.members)

    def _retry(self, work: Work, answered: bool, most: int) -> bool:
        """Queue the work again, unless this was its last attempt or a client has text of it."""
        if work.once or work.op.attempt + 1 >= most:
            return False
        if answered and not self._sessions.restarts(work.primitive):
            return False
        self._queue.add(replace(work, op=replace(work.op, attempt=work.op.attempt + 1)))
        return True
