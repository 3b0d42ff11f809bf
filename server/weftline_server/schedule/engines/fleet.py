"""The engines under supervision: started, restarted, joined from elsewhere, and let go.

One watcher gets the events of all engines, and learns when an engine comes and goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from weftline.contract.errors import EngineUnavailable, InvalidRequest
from weftline_engine import api
from weftline_server.prompt.prompter import Prompter
from weftline_server.schedule.engines.member import EngineState, Member

log = logging.getLogger("weftline.fleet")

RESTART_PAUSES_S = (0.2, 1.0, 5.0)  # then always 5 s: a crash loop must not spin
TURN_EVENTS = 256  # events that are heard in one turn of the loop, in about 20 ms
START_S = 120.0  # longest start of an engine on demand, for whose end steps wait
_SERVING = (EngineState.ASLEEP, EngineState.STARTING, EngineState.READY)
MOST_GONE = 64  # engines that joined and are gone, which health still names


class Watcher(Protocol):
    """The receiver of engines' arrivals, departures and events."""

    def ready(self, member: Member) -> None:
        """The engine takes work."""
        ...

    def heard(self, member: Member, events: Sequence[api.Event]) -> None:
        """The engine sent these events."""
        ...

    def down(self, member: Member) -> None:
        """The engine is gone, with everything that it ran."""
        ...

    def waits(self, member: Member) -> bool:
        """Whether work waits that the engine could do."""
        ...


class _Turn:
    """Counts the events that one supervisor hears in one turn of the event loop.

    Events of earlier turns do not count: a pause that they cause would split the chunks of a
    stream at a place that depends on what other calls have done.
    """

    def __init__(self) -> None:
        self._events = 0

    def heard(self, events: int) -> int:
        """Add `events`. Returns the events of this turn."""
        if self._events == 0:
            asyncio.get_running_loop().call_soon(self._end)
        self._events += events
        return self._events

    def _end(self) -> None:
        self._events = 0


class Fleet:
    """Every engine by name.

    A configured engine is started again when it dies. One that joined comes back by joining again;
    events of its earlier incarnation are then ignored. One on demand is asleep until it is used. If
    it dies or does not start, it is started again while work waits for it.
    """

    def __init__(
        self,
        engines: Mapping[str, Callable[[], api.Engine]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = {name: Member(name, make) for name, make in engines.items()}
        self.prompters: dict[str, Prompter] = {}  # of the models whose engines take prompts
        self.models: list[str] = []  # those that some engine generates with, the default first
        self._watcher: Watcher  # set by `start`
        self._now = clock
        self._closing = False
        self._announced: dict[tuple[str, str], None] = {}  # model and kind, by any engine so far
        self._without: dict[tuple[str, str], float] = {}  # of these, since when no engine takes it
        self._on_demand: dict[tuple[str, str], list[Member]] = {}  # by model and kind

    async def start(self, watcher: Watcher) -> None:
        """Start every engine that is not on demand, all at once.

        Raises EngineDied with a reason for the user.
        """
        self._watcher = watcher
        try:
            async with asyncio.TaskGroup() as group:
                for member in self.members.values():
                    if not member.on_demand:
                        group.create_task(self._load(member))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for member in list(self.members.values()):  # in the order of the configuration
            if member.on_demand:
                self._announce(member)
                continue
            await self._enter(member)
            member.task = asyncio.create_task(self._supervise(member), name=f"engine {member.name}")

    def running(self, op: str) -> Member | None:
        """The engine that has the op."""
        return next((one for one in self.members.values() if op in one.ops.works), None)

    def wake(self, model: str, kind: str) -> None:
        """Start the engines on demand that take this kind of op for `model`, if they are asleep."""
        for member in self._on_demand.get((model, kind), ()):
            if member.state is EngineState.ASLEEP:
                member.move_to(EngineState.STARTING)
                name = f"engine {member.name}"
                member.task = asyncio.create_task(self._supervise(member), name=name)

    async def close(self) -> None:
        """Stop the supervision and every engine."""
        self._closing = True
        members = list(self.members.values())
        for member in members:
            member.move_to(EngineState.CLOSED)
            if member.engine is not None:
                await member.engine.close()
            if member.task is not None:
                member.task.cancel()
        tasks = [member.task for member in members if member.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs elsewhere.

        Raises InvalidRequest if it does not fit, EngineUnavailable if the server is shutting down.
        """
        if self._closing:
            raise EngineUnavailable("the server is shutting down")
        member = Member(name, None, engine=engine, description=description)
        await self._enter(member)
        member.task = asyncio.create_task(self._supervise(member), name=f"engine {name}")

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

    def waiting_since(self, model: str, kind: str, queued: float) -> float | None:
        """Return since when no engine takes this kind of op for `model`; None where one does.

        If no engine ever announced it, that is the time at which the op was `queued`.
        """
        if (model, kind) not in self._announced:
            return queued
        return self._without.get((model, kind))

    def note_gaps(self) -> None:
        """Remember which announced kinds of op no engine takes now, and since when.

        An engine that is asleep, or is started for its first use, counts as one that takes them.
        """
        taken = {
            (member.description.model, kind)
            for member in self.members.values()
            if member.state in _SERVING and member.description is not None
            for kind in member.kinds
        }
        for one in self._announced:
            if one in taken:
                self._without.pop(one, None)
            else:
                self._without.setdefault(one, self._now())

    async def _load(self, member: Member) -> None:
        assert member.make is not None
        member.engine = member.make()
        try:
            async with asyncio.timeout(START_S if member.on_demand else None):
                member.describe(await member.engine.start())
        except TimeoutError:
            raise api.EngineDied(f"it did not start within {START_S:g} s") from None

    def _announce(self, member: Member) -> None:
        """Note which kinds of op an engine on demand will take."""
        assert member.description is not None, "it says so before it runs"
        for kind in sorted(member.kinds):
            self._announced[member.description.model, kind] = None
            self._on_demand.setdefault((member.description.model, kind), []).append(member)

    async def _enter(self, member: Member) -> None:
        """Let the engine take work, if it takes the same prompts as other engines of its model."""
        assert member.description is not None
        model = member.description.model
        prompter: Prompter | None = None
        if member.takes_prompts:
            loop = asyncio.get_running_loop()
            prompter = await loop.run_in_executor(None, Prompter, member.description)
            if prompter.fingerprint != self.prompters.get(model, prompter).fingerprint:
                raise InvalidRequest(
                    f"engine {member.name} serves model {model!r} with another tokenizer, template "
                    "or kind of prompt than the engine before it: give it a name of its own"
                )
        former = self.members.get(member.name, member)
        if former is not member and former.make is not None:
            raise InvalidRequest(
                f"{member.name!r} is an engine of the server itself: join by another name"
            )
        if prompter is not None:
            self.prompters.setdefault(model, prompter)
        if api.Kind.GENERATE in member.kinds and model not in self.models:
            self.models.append(model)
        self._announced |= dict.fromkeys((model, kind) for kind in sorted(member.kinds))
        self.members[member.name] = member
        if former is not member:
            self._fence(former)
        member.move_to(EngineState.READY)
        self.note_gaps()
        self._watcher.ready(member)

    def _fence(self, member: Member) -> None:
        """Ignore all further events of an engine whose successor has joined."""
        if member.task is not None:
            member.task.cancel()
        if member.state is not EngineState.DOWN:
            member.last_error = "it joined again"
            self._lose(member)

    async def _supervise(self, member: Member) -> None:
        """Pass the engine's events on. When it dies, start it again or wait until it joins."""
        failures = 0
        turn = _Turn()
        while not member.closed:
            try:
                if member.state in (EngineState.DOWN, EngineState.STARTING):
                    await self._load(member)
                    await self._enter(member)
                assert member.engine is not None, "it has started"
                async for events in member.engine.events():
                    failures = 0
                    self._hear(member, events)
                    if turn.heard(len(events)) >= TURN_EVENTS:
                        await asyncio.sleep(0)  # events that are there already come without a wait
            except (api.EngineDied, InvalidRequest) as error:
                member.last_error = str(error)
            except Exception as error:  # no more files, no memory, or a bug: the next try may work
                log.exception("engine %s: an error of its supervisor", member.name)
                member.last_error = f"{type(error).__name__}: {error}"
            if member.closed:
                return
            if member.state is EngineState.LEAVING and not member.ops.works:
                del self.members[member.name]
                return
            self._lose(member)
            await self._end(member)
            if member.make is None:
                self._forget_gone()
                return
            await asyncio.sleep(RESTART_PAUSES_S[min(failures, len(RESTART_PAUSES_S) - 1)])
            failures += 1
            if member.on_demand and not member.closed and not self._watcher.waits(member):
                member.move_to(EngineState.ASLEEP)
                return

    async def _end(self, member: Member) -> None:
        """Close what is left of a lost engine before another one takes its place."""
        assert member.engine is not None
        try:
            await member.engine.close()
        except Exception:
            log.exception("engine %s was lost and could not be closed", member.name)

    def _hear(self, member: Member, events: Sequence[api.Event]) -> None:
        for event in events:
            if isinstance(event, api.Availability):
                self._availability(member, event)
        self._watcher.heard(member, events)

    def _availability(self, member: Member, event: api.Availability) -> None:
        if event.leaving:
            member.move_to(EngineState.LEAVING)
        elif event.available and member.state is EngineState.SUSPENDED:
            member.move_to(EngineState.READY)
            self._watcher.ready(member)
        elif not event.available and member.state is EngineState.READY:
            member.last_error = event.reason
            member.move_to(EngineState.SUSPENDED)
            log.warning("engine %s takes no work for a while: %s", member.name, event.reason)
        self.note_gaps()

    def _lose(self, member: Member) -> None:
        log.error("engine %s died: %s", member.name, member.last_error or "its events ended")
        if member.state is not EngineState.DOWN:  # a restart that failed changes nothing
            member.move_to(EngineState.DOWN)
        self.note_gaps()
        try:
            self._watcher.down(member)
        except Exception:  # a bug in one session must not leave the engine without a supervisor
            log.exception("engine %s was lost, and not everybody could be told", member.name)

    def _forget_gone(self) -> None:
        gone = [s for s in self.members.values() if s.make is None and s.state is EngineState.DOWN]
        for member in gone[:-MOST_GONE]:
            del self.members[member.name]
