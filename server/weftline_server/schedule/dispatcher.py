"""The one place where primitives meet engines: it performs placements and passes events back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weftline.errors import EngineFailed, EngineUnavailable, UnknownModel
from weftline_engine import api
from weftline_server.prompt.prompter import Prompter
from weftline_server.schedule.engines.fleet import Fleet
from weftline_server.schedule.engines.slot import EngineState, Slot, Work
from weftline_server.schedule.memory.keeper import Advise, Free, Memory, Retain, Verb
from weftline_server.schedule.placement import place
from weftline_server.schedule.sessions import Sent, Sessions

MAX_ATTEMPTS = 3
# A queued call whose model has had no engine for so long fails, so that its graph ends.
UNAVAILABLE_S = 20.0
EXPIRE_EVERY_S = 1.0


class Dispatcher:
    """Holds the queue, asks the policy, supervises the engines."""

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        policy: str,
        clock: Callable[[], float] = time.monotonic,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._fleet = Fleet(engines, self, clock)
        self._policy = policy
        self._now = clock
        self._without = without
        self._sessions: Sessions  # this and the next are set by `start`
        self._memory: Memory
        self._placing = False  # a round is due in this turn of the event loop
        self._queue: dict[str, Work] = {}
        self._expiring: asyncio.Task[None] | None = None

    async def start(self, sessions: Sessions) -> None:
        """Start every engine, and tell `sessions` from now on what becomes of their primitives.

        Raises EngineDied with a reason for the user if an engine does not load.
        """
        self._sessions = sessions
        self._memory = Memory(sessions, self._without)
        await self._fleet.start()
        self._expiring = asyncio.create_task(self._expire_forever())

    async def close(self) -> None:
        """Stop the supervision and every engine."""
        if self._expiring is not None:
            self._expiring.cancel()
        await self._fleet.close()

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Take an engine that runs elsewhere in. Raises InvalidRequest where it does not fit."""
        await self._fleet.join(name, engine, description)

    @property
    def slots(self) -> Sequence[Slot]:
        """The engines, the configured ones first."""
        return tuple(self._fleet.slots.values())

    @property
    def healthy(self) -> bool:
        """Whether every served model has an engine that takes work."""
        self._fleet.note_gaps()
        models = self.models
        return bool(models) and all(self._fleet.waiting_since(one) is None for one in models)

    @property
    def states(self) -> dict[str, EngineState]:
        return {slot.name: slot.state for slot in self._fleet.slots.values()}

    @property
    def queued(self) -> int:
        """How many primitives wait for an engine."""
        return len(self._queue)

    def running(self) -> dict[str, tuple[int, int]]:
        """By engine: how many primitives it has, and how many tokens these hold at most."""
        return {
            slot.name: (len(slot.running), sum(work.tokens for work in slot.running.values()))
            for slot in self._fleet.slots.values()
        }

    @property
    def models(self) -> list[str]:
        """The served models, the default one first."""
        return list(self._fleet.prompters)

    def model(self, name: str | None) -> str:
        """The served model that `name` means. Raises UnknownModel, EngineUnavailable."""
        models = self._fleet.prompters
        if not models:
            raise EngineUnavailable("no engine is ready yet", retry_after_s=1.0)
        if name in (None, "", "default"):
            return next(iter(models))
        assert name is not None
        if name not in models:
            served = ", ".join(models)
            raise UnknownModel(f"no engine serves model {name!r}: use one of {served}", param=name)
        return name

    def prompter(self, model: str) -> Prompter:
        return self._fleet.prompters[model]

    def enqueue(self, work: Work) -> None:
        """Queue a primitive; it is sent in this turn of the loop where an engine has room."""
        self._queue[work.op.id] = work
        self._perform(self._memory.queued(work.op, work.model, work.stays, self._now()))
        self._place_soon()

    def feed(self, op: str, part: tuple[int, ...], last: bool) -> bool:
        """Append to an open primitive's prompt; False if there is none (any more)."""
        if (work := self._queue.get(op)) is not None:
            self._queue[op] = work.fed(part, last)
            self._place_soon()
            return True
        for slot in self._fleet.slots.values():
            if (work := slot.running.get(op)) is None:
                continue
            assert slot.engine is not None and work.op.tokens is not None
            slot.engine.feed(op, len(work.op.tokens), part, last)
            slot.hold(work.fed(part, last))
            if last:
                self._sessions.outcome(work.primitive, Sent(slot.name, self._now(), slot.node))
            return True
        return False

    def cancel(self, op: str) -> None:
        """Take a primitive back; nothing more is heard of it."""
        if (queued := self._queue.pop(op, None)) is not None:
            self._memory.dropped(None, queued.op, self._now())
            return
        for slot in self._fleet.slots.values():
            if (work := slot.release(op)) is not None and slot.engine:
                slot.delivered.discard(op)
                slot.engine.cancel(op)
                self._perform(self._memory.dropped(slot.name, work.op, self._now()))
                self._place_soon()

    def forget(self, application: str) -> None:
        """An application has ended: what the engines keep for it is freed."""
        self._perform(self._memory.closed(application))
        if self._queue:
            self._place_soon()

    def _perform(self, verbs: Sequence[Verb]) -> None:
        for verb in verbs:
            slot = self._fleet.slots.get(verb.engine)
            if slot is None or slot.engine is None or slot.state is EngineState.DOWN:
                continue
            match verb:
                case Advise(_, context, pause_s, tokens):
                    hints = api.Hints(expected_pause=pause_s, kept_tokens=tokens)
                    slot.engine.update(context, hints)
                case Retain(_, context, retention):
                    slot.engine.retain(context, retention)
                case Free(_, context):
                    slot.engine.free(context)

    def _place_soon(self) -> None:
        """One round for all that a turn of the loop brings: a burst is seen as a whole."""
        if not self._placing:
            self._placing = True
            asyncio.get_running_loop().call_soon(self._place)

    def _by_model(self) -> dict[str, list[Slot]]:
        """The engines that are ready."""
        found: dict[str, list[Slot]] = {}
        for slot in self._fleet.slots.values():
            if slot.state is EngineState.READY and slot.description is not None:
                found.setdefault(slot.description.model, []).append(slot)
        return found

    def _admit(self, ready: Mapping[str, Sequence[Slot]]) -> None:
        """Let waiting applications at the KV caches, each model's on its own."""
        for model, slots in ready.items():
            sizes = [slot.description.kv_tokens for slot in slots if slot.description is not None]
            known = [size for size in sizes if size is not None]
            pool = sum(known) if len(known) == len(sizes) else None
            self._memory.admit(model, pool, self._now())

    def _place(self) -> None:
        self._placing = False
        for id, hints in self._sessions.replanned():
            if (work := self._queue.get(str(id))) is not None:
                self._queue[str(id)] = replace(work, op=replace(work.op, hints=hints))
        ready = self._by_model()
        self._admit(ready)
        queue = [
            work.item
            for work in self._queue.values()
            if self._memory.may_start(work.op.hints.application)
        ]
        # What 256 engines have in hand takes milliseconds to sum up: not where nothing waits.
        loads = [slot.load() for slots in ready.values() for slot in slots] if queue else []
        for placement in place(queue, loads, self._policy, self._now()):
            work = self._queue.pop(placement.id)
            slot = self._fleet.slots[placement.engine]
            assert slot.engine is not None
            slot.hold(work)
            slot.remember(work)
            slot.engine.submit(work.op_beside(slot.latency_tokens))
            if not work.op.open:
                self._sessions.outcome(work.primitive, Sent(slot.name, self._now(), slot.node))
        for model, slots in ready.items():
            busy = sum(bool(slot.running) for slot in slots) / len(slots)
            self._memory.ran(model, busy, self._now())

    def ready(self, slot: Slot) -> None:
        """The fleet's word that an engine takes work."""
        assert slot.description is not None, "a ready engine has described itself"
        counts = api.Capability.USAGE in slot.description.capabilities
        self._memory.has_pool(slot.name, slot.description.kv_tokens, counts)
        self._place_soon()

    def heard(self, slot: Slot, events: Sequence[api.Event]) -> None:
        """What an engine said: to the sessions, but for news of ops that are ours no more."""
        ended = False
        for event in events:
            work = slot.running.get(event.op)
            # An old attempt's news, or of an op that was taken back in the meantime.
            if work is None or event.attempt != work.op.attempt:
                continue
            if isinstance(event, api.Part):
                slot.delivered.add(event.op)
                self._sessions.outcome(work.primitive, event)
            elif isinstance(event, (api.Finished, api.Failed)):
                ended = True
                slot.release(work.op.id)
                if isinstance(event, api.Failed) and self._retry(slot, work, event.retryable):
                    self._perform([Free(slot.name, work.op.context)])
                    continue
                slot.delivered.discard(event.op)
                # Its session hears of it first: what becomes of the context depends on who waits.
                self._sessions.outcome(work.primitive, event)
                self._settle_context(slot, work, event)
        if ended:
            self._place_soon()

    def _settle_context(self, slot: Slot, work: Work, event: api.Finished | api.Failed) -> None:
        now = self._now()
        if isinstance(event, api.Finished):
            verbs = self._memory.finished(slot.name, work.primitive, work.op, event.usage, now)
        else:
            verbs = self._memory.dropped(slot.name, work.op, now)
        self._perform(verbs)

    def _retry(self, slot: Slot, work: Work, retryable: bool) -> bool:
        """Queue `work` again if another attempt may do and none of its text has been seen."""
        if not retryable or work.op.id in slot.delivered or work.op.attempt + 1 >= MAX_ATTEMPTS:
            return False
        again = replace(work, op=replace(work.op, attempt=work.op.attempt + 1))
        self._queue[work.op.id] = again
        return True

    def down(self, slot: Slot) -> None:
        """Give every op of a dead engine another attempt, or fail it with the engine's reason."""
        self._memory.lost(slot.name)
        for work in list(slot.running.values()):
            slot.release(work.op.id)
            if not self._retry(slot, work, retryable=True):
                self._memory.dropped(None, work.op, self._now())
                failed = api.Failed(
                    op=work.op.id,
                    attempt=work.op.attempt,
                    sequence=0,
                    time=self._now(),
                    error=EngineFailed.__name__,
                    message=f"engine {slot.name} died while it ran this call: {slot.last_error}",
                )
                self._sessions.outcome(work.primitive, failed)
        slot.delivered.clear()
        slot.forget()
        self._place_soon()

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self.expire()
            if self._queue:
                self._place_soon()  # one may have waited for so long that it may start now

    def expire(self) -> None:
        """Fail what waits for a model that no engine has served for UNAVAILABLE_S."""
        self._fleet.note_gaps()
        now = self._now()
        for work in list(self._queue.values()):
            since = self._fleet.waiting_since(work.model)
            if since is None or now - since < UNAVAILABLE_S:
                continue
            del self._queue[work.op.id]
            why = "; ".join(f"{s.name}: {s.last_error}" for s in self.slots if s.last_error)
            failed = api.Failed(
                op=work.op.id,
                attempt=work.op.attempt,
                sequence=0,
                time=now,
                error=EngineUnavailable.__name__,
                message=f"no engine has served {work.model} for {UNAVAILABLE_S:g} s ({why})",
            )
            self._memory.dropped(None, work.op, now)
            self._sessions.outcome(work.primitive, failed)
