"""The one place where primitives meet engines: it performs placements and passes events back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weftline.errors import EngineFailed, EngineUnavailable, UnknownModel
from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.policy import EngineLoad, Queued, place
from weftline_server.schedule.prompter import Prompter
from weftline_server.schedule.slot import EngineState, Slot, Work

log = logging.getLogger("weftline.dispatcher")

MAX_ATTEMPTS = 3
RESTART_PAUSES_S = (0.2, 1.0, 5.0)  # then 5 s for ever: a crash loop must not spin


@dataclass(frozen=True, slots=True)
class Sent:
    """The primitive has gone to `engine`."""

    engine: str
    time: float


Outcome = Sent | api.Part | api.Finished | api.Failed
Sink = Callable[[PrimitiveId, Outcome], None]


class Dispatcher:
    """Holds the queue, asks the policy, supervises the engines."""

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        policy: str,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = {name: Slot(name, make) for name, make in engines.items()}
        self._policy = policy
        self._sink = sink
        self._now = clock
        self._queue: dict[str, Work] = {}
        self._prompters: dict[str, Prompter] = {}
        self._first_model: str | None = None

    async def start(self) -> None:
        """Start every engine; raises EngineDied with a reason for the user if one does not load."""
        for slot in self._slots.values():
            await self._start(slot)
            slot.task = asyncio.create_task(self._supervise(slot), name=f"engine {slot.name}")

    async def close(self) -> None:
        """Stop the supervision and every engine."""
        for slot in self._slots.values():
            slot.move_to(EngineState.CLOSED)
            if slot.engine is not None:
                await slot.engine.close()
            if slot.task is not None:
                slot.task.cancel()
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def states(self) -> dict[str, EngineState]:
        return {slot.name: slot.state for slot in self._slots.values()}

    @property
    def queued(self) -> int:
        """How many primitives wait for an engine."""
        return len(self._queue)

    def running(self) -> dict[str, tuple[int, int]]:
        """By engine: how many primitives it has, and how many tokens these hold at most."""
        return {
            slot.name: (len(slot.running), sum(work.tokens for work in slot.running.values()))
            for slot in self._slots.values()
        }

    @property
    def models(self) -> list[str]:
        """The served models, the default one first."""
        return list(self._prompters)

    def model(self, name: str | None) -> str:
        """The served model that `name` means. Raises UnknownModel, EngineUnavailable."""
        if self._first_model is None:
            raise EngineUnavailable("no engine is ready yet", retry_after_s=1.0)
        if name in (None, "", "default"):
            return self._first_model
        assert name is not None
        if name not in self._prompters:
            served = ", ".join(self._prompters)
            raise UnknownModel(f"no engine serves model {name!r}: use one of {served}", param=name)
        return name

    def prompter(self, model: str) -> Prompter:
        return self._prompters[model]

    def enqueue(self, work: Work) -> None:
        """Queue a primitive; it is sent at once where an engine has room."""
        self._queue[work.op.id] = work
        self._place()

    def feed(self, op: str, part: tuple[int, ...], last: bool) -> bool:
        """Append to an open primitive's prompt; False if there is none (any more)."""
        if (work := self._queue.get(op)) is not None:
            self._queue[op] = work.fed(part, last)
            self._place()
            return True
        for slot in self._slots.values():
            if (work := slot.running.get(op)) is None:
                continue
            assert slot.engine is not None and work.op.tokens is not None
            slot.engine.feed(op, len(work.op.tokens), part, last)
            slot.running[op] = work.fed(part, last)
            if last:
                self._sink(work.primitive, Sent(slot.name, self._now()))
            return True
        return False

    def cancel(self, op: str) -> None:
        """Take a primitive back; nothing more is heard of it."""
        if self._queue.pop(op, None) is not None:
            return
        for slot in self._slots.values():
            if (work := slot.running.pop(op, None)) is not None and slot.engine:
                slot.delivered.discard(op)
                slot.engine.cancel(op)
                slot.engine.free(work.op.context)
                self._place()

    def _place(self) -> None:
        queue = [
            Queued(
                id=work.op.id,
                model=work.model,
                queued=work.queued,
                tokens=work.tokens,
                hints=work.op.hints,
                prefixes=work.prefixes,
                open=work.op.open,
            )
            for work in self._queue.values()
        ]
        for placement in place(queue, self._loads(), self._policy, self._now()):
            work = self._queue.pop(placement.id)
            slot = self._slots[placement.engine]
            assert slot.engine is not None
            slot.running[work.op.id] = work
            slot.remember(work)
            slot.engine.submit(work.op)
            if not work.op.open:
                self._sink(work.primitive, Sent(slot.name, self._now()))

    def _loads(self) -> list[EngineLoad]:
        ready = (slot for slot in self._slots.values() if slot.state is EngineState.READY)
        return [slot.load() for slot in ready]

    async def _start(self, slot: Slot) -> None:
        slot.engine = slot.make()
        slot.description = await slot.engine.start()
        model = slot.description.model
        if model not in self._prompters:
            loop = asyncio.get_running_loop()
            prompter = await loop.run_in_executor(None, Prompter, slot.description)
            self._prompters[model] = prompter
        self._first_model = self._first_model or model
        slot.move_to(EngineState.READY)
        self._place()

    async def _supervise(self, slot: Slot) -> None:
        """Deliver the engine's events; when it dies, settle its work and start it again."""
        failures = 0
        while slot.state is not EngineState.CLOSED:
            assert slot.engine is not None
            try:
                if slot.state is EngineState.DOWN:
                    await self._start(slot)
                async for events in slot.engine.events():
                    failures = 0
                    self._deliver(slot, events)
            except api.EngineDied as error:
                slot.last_error = str(error)
            if not self._mark_down(slot):
                return
            log.error("engine %s died: %s", slot.name, slot.last_error or "its events ended")
            self._settle(slot)
            await asyncio.sleep(RESTART_PAUSES_S[min(failures, len(RESTART_PAUSES_S) - 1)])
            failures += 1

    def _mark_down(self, slot: Slot) -> bool:
        """Whether the engine went down by itself, rather than being closed by us."""
        if slot.state is EngineState.CLOSED:
            return False
        if slot.state is not EngineState.DOWN:  # a restart that failed changes nothing
            slot.move_to(EngineState.DOWN)
        return True

    def _deliver(self, slot: Slot, events: Sequence[api.Event]) -> None:
        ended = False
        for event in events:
            work = slot.running.get(event.op)
            # An old attempt's news, or of an op that was taken back in the meantime.
            if work is None or event.attempt != work.op.attempt:
                continue
            if isinstance(event, api.Part):
                slot.delivered.add(event.op)
                self._sink(work.primitive, event)
            elif isinstance(event, (api.Finished, api.Failed)):
                ended = True
                self._release(slot, work)
                if isinstance(event, api.Failed) and self._retry(slot, work, event.retryable):
                    continue
                slot.delivered.discard(event.op)
                self._sink(work.primitive, event)
        if ended:
            self._place()

    def _release(self, slot: Slot, work: Work) -> None:
        del slot.running[work.op.id]
        if slot.engine is not None and slot.state is EngineState.READY:
            slot.engine.free(work.op.context)

    def _retry(self, slot: Slot, work: Work, retryable: bool) -> bool:
        """Queue `work` again if another attempt may do and none of its text has been seen."""
        if not retryable or work.op.id in slot.delivered or work.op.attempt + 1 >= MAX_ATTEMPTS:
            return False
        again = replace(work, op=replace(work.op, attempt=work.op.attempt + 1))
        self._queue[work.op.id] = again
        return True

    def _settle(self, slot: Slot) -> None:
        """Give every op of a dead engine another attempt, or fail it with the engine's reason."""
        for work in list(slot.running.values()):
            self._release(slot, work)
            if not self._retry(slot, work, retryable=True):
                failed = api.Failed(
                    op=work.op.id,
                    attempt=work.op.attempt,
                    sequence=0,
                    time=self._now(),
                    error=EngineFailed.__name__,
                    message=f"engine {slot.name} died while it ran this call: {slot.last_error}",
                )
                self._sink(work.primitive, failed)
        slot.delivered.clear()
        slot.prefixes.clear()
        self._place()
