"""The engines under supervision: started, restarted, joined from elsewhere, and let go.

Their events go to one watcher. It is also told when an engine comes and goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from weftline.errors import EngineUnavailable, InvalidRequest
from weftline_engine import api
from weftline_server.prompt.prompter import Prompter
from weftline_server.schedule.engines.slot import EngineState, Slot

log = logging.getLogger("weftline.fleet")

RESTART_PAUSES_S = (0.2, 1.0, 5.0)  # then always 5 s: a crash loop must not spin
MOST_GONE = 64  # engines that joined and are gone, which health still names


class Watcher(Protocol):
    """The receiver of engines' arrivals, departures and events."""

    def ready(self, slot: Slot) -> None:
        """The engine takes work."""
        ...

    def heard(self, slot: Slot, events: Sequence[api.Event]) -> None:
        """The engine sent these events."""
        ...

    def down(self, slot: Slot) -> None:
        """The engine is gone, with everything that it ran."""
        ...


class Fleet:
    """Every engine by name.

    A configured engine is started again when it dies. One that joined comes back by joining again;
    events of its earlier incarnation are then ignored.
    """

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = {name: Slot(name, make) for name, make in engines.items()}
        self.prompters: dict[str, Prompter] = {}  # of the models whose engines take prompts
        self.models: list[str] = []  # those that some engine generates with, the default first
        self._watcher: Watcher  # set by `start`
        self._now = clock
        self._closing = False
        self._announced: dict[tuple[str, str], None] = {}  # model and kind, by any engine so far
        self._without: dict[tuple[str, str], float] = {}  # of these, since when no engine takes it

    async def start(self, watcher: Watcher) -> None:
        """Start every engine at once. Raises EngineDied with a reason for the user."""
        self._watcher = watcher
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self.slots.values():
                    group.create_task(self._load(slot))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for slot in list(self.slots.values()):  # in the order of the configuration
            await self._enter(slot)
            slot.task = asyncio.create_task(self._supervise(slot), name=f"engine {slot.name}")

    async def close(self) -> None:
        """Stop the supervision and every engine."""
        self._closing = True
        slots = list(self.slots.values())
        for slot in slots:
            slot.move_to(EngineState.CLOSED)
            if slot.engine is not None:
                await slot.engine.close()
            if slot.task is not None:
                slot.task.cancel()
        tasks = [slot.task for slot in slots if slot.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs elsewhere.

        Raises InvalidRequest if it does not fit, EngineUnavailable if the server is shutting down.
        """
        if self._closing:
            raise EngineUnavailable("the server is shutting down")
        slot = Slot(name, None, engine=engine, description=description)
        await self._enter(slot)
        slot.task = asyncio.create_task(self._supervise(slot), name=f"engine {name}")

    @property
    def healthy(self) -> bool:
        """Whether every served model and store has an engine that takes work."""
        self.note_gaps()
        # An engine that only fills serves nothing by itself.
        served = [one for one in self._announced if one[1] != api.Kind.FILL]
        return bool(served) and self._without.keys().isdisjoint(served)

    def resources(self, kind: str) -> list[str]:
        """Return what some engine announced for ops of `kind`: models or stores, in order."""
        return [model for model, one in self._announced if one == kind]

    def batch(self, kind: str, resource: str) -> int | None:
        """Return the efficient number of items of an op of `kind`, the least of the engines that run
        it for `resource`; None if one of them takes whole ops only.
        """
        described = [
            one
            for slot in self.slots.values()
            if (one := slot.description) is not None
            and one.model == resource
            and kind in slot.kinds
        ]
        if not described or any(api.Capability.FEED not in one.capabilities for one in described):
            return None
        return min(one.efficient_items(kind) for one in described)

    def waiting_since(self, model: str, kind: str, queued: float) -> float | None:
        """Return since when no engine takes this kind of op for `model`; None where one does.

        If no engine ever announced it, that is the time at which the op was `queued`.
        """
        if (model, kind) not in self._announced:
            return queued
        return self._without.get((model, kind))

    def note_gaps(self) -> None:
        """Remember which announced kinds of op no engine takes now, and since when."""
        taken = {
            (slot.description.model, kind)
            for slot in self.slots.values()
            if slot.state is EngineState.READY and slot.description is not None
            for kind in slot.kinds
        }
        for one in self._announced:
            if one in taken:
                self._without.pop(one, None)
            else:
                self._without.setdefault(one, self._now())

    async def _load(self, slot: Slot) -> None:
        assert slot.make is not None
        slot.engine = slot.make()
        slot.describe(await slot.engine.start())

    async def _enter(self, slot: Slot) -> None:
        """Let the engine take work, if it takes the same prompts as other engines of its model."""
        assert slot.description is not None
        model = slot.description.model
        prompter: Prompter | None = None
        if slot.takes_prompts:
            loop = asyncio.get_running_loop()
            prompter = await loop.run_in_executor(None, Prompter, slot.description)
            if prompter.fingerprint != self.prompters.get(model, prompter).fingerprint:
                raise InvalidRequest(
                    f"engine {slot.name} serves model {model!r} with another tokenizer, template "
                    "or kind of prompt than the engine before it: give it a name of its own"
                )
        former = self.slots.get(slot.name, slot)
        if former is not slot and former.make is not None:
            raise InvalidRequest(
                f"{slot.name!r} is an engine of the server itself: join by another name"
            )
        if prompter is not None:
            self.prompters.setdefault(model, prompter)
        if api.Kind.GENERATE in slot.kinds and model not in self.models:
            self.models.append(model)
        self._announced |= dict.fromkeys((model, kind) for kind in sorted(slot.kinds))
        self.slots[slot.name] = slot
        if former is not slot:
            self._fence(former)
        slot.move_to(EngineState.READY)
        self.note_gaps()
        self._watcher.ready(slot)

    def _fence(self, slot: Slot) -> None:
        """Ignore an engine from now on: its successor has joined."""
        if slot.task is not None:
            slot.task.cancel()
        if slot.state is not EngineState.DOWN:
            slot.last_error = "it joined again"
            self._lose(slot)

    async def _supervise(self, slot: Slot) -> None:
        """Pass the engine's events on. When it dies, start it again or wait until it joins."""
        failures = 0
        while not slot.closed:
            assert slot.engine is not None
            try:
                if slot.state is EngineState.DOWN:
                    await self._load(slot)
                    await self._enter(slot)
                async for events in slot.engine.events():
                    failures = 0
                    self._hear(slot, events)
            except (api.EngineDied, InvalidRequest) as error:
                slot.last_error = str(error)
            if slot.closed:
                return
            if slot.state is EngineState.LEAVING and not slot.ops.works:
                del self.slots[slot.name]
                return
            self._lose(slot)
            if slot.make is None:
                await slot.engine.close()
                self._forget_gone()
                return
            await asyncio.sleep(RESTART_PAUSES_S[min(failures, len(RESTART_PAUSES_S) - 1)])
            failures += 1

    def _hear(self, slot: Slot, events: Sequence[api.Event]) -> None:
        for event in events:
            if isinstance(event, api.Availability):
                self._availability(slot, event)
        self._watcher.heard(slot, events)

    def _availability(self, slot: Slot, event: api.Availability) -> None:
        if event.leaving:
            slot.move_to(EngineState.LEAVING)
        elif event.available and slot.state is EngineState.SUSPENDED:
            slot.move_to(EngineState.READY)
            self._watcher.ready(slot)
        elif not event.available and slot.state is EngineState.READY:
            slot.last_error = event.reason
            slot.move_to(EngineState.SUSPENDED)
            log.warning("engine %s takes no work for a while: %s", slot.name, event.reason)
        self.note_gaps()

    def _lose(self, slot: Slot) -> None:
        log.error("engine %s died: %s", slot.name, slot.last_error or "its events ended")
        if slot.state is not EngineState.DOWN:  # a restart that failed changes nothing
            slot.move_to(EngineState.DOWN)
        self.note_gaps()
        self._watcher.down(slot)

    def _forget_gone(self) -> None:
        gone = [s for s in self.slots.values() if s.make is None and s.state is EngineState.DOWN]
        for slot in gone[:-MOST_GONE]:
            del self.slots[slot.name]
