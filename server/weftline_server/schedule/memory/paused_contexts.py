"""Decides about the context of a paused call: keep it, copy it to host memory, or drop it.

A context that may be evicted costs nothing until its room is needed. So a strategy is chosen only
where an application waits for room, at the pause or later, and by the waste of each. A context that
is to be discarded is then the first to be evicted. The code is synchronous and is told the time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from weftline_engine.api import Retention
from weftline_server.schedule.memory.early_restores import LONG_COPY, EarlyRestores, Swapped
from weftline_server.schedule.memory.engine_costs import EngineCosts
from weftline_server.schedule.memory.host_copies import HostCopies, HostCopy
from weftline_server.schedule.memory.pauses import Pauses
from weftline_server.schedule.memory.tool_results import ToolResults
from weftline_server.schedule.memory.verbs import AdviseContext, RetainContext, Verb
from weftline_server.schedule.memory.waste import Load, Strategy, Waste, waste
from weftline_server.schedule.placement.round_data import EngineLoad

log = logging.getLogger("weftline.memory")

# The expected pause of a context whose room others need more, in seconds. Such a context is read
# after the contexts of all admitted applications.
LONG_S = 3600.0
# An application that gives up its place keeps its context until others need the room. So giving up
# is assumed to waste this share of what discarding or copying would.
LOST = 0.5


@dataclass(frozen=True, slots=True)
class PausedContext:
    """A context of `tokens` tokens whose call stopped for `tools` and goes on in `pause_s`.

    With `stops` False the call has ended, and its session may send another.
    """

    engine: str
    context: str
    tokens: int
    tenant: str
    tools: tuple[str, ...]
    pause_s: float
    since: float
    load: Load
    stops: bool = True


class PausedContexts:
    """The paused contexts of all applications, and what was learned from them.

    Applications of the `pressed` models wait for room.
    """

    def __init__(self, learns: bool = True, pressed: AbstractSet[str] = frozenset()) -> None:
        self.engines = EngineCosts()
        self.pauses = Pauses()
        self.results = ToolResults()
        self._learns = learns
        self._pressed = pressed
        self._host = HostCopies()
        self.early = EarlyRestores()
        self._open: dict[str, tuple[PausedContext, Waste | None, Strategy]] = {}  # by context

    def lose(self, engine: str) -> None:
        """Forget an engine that is gone with all its contexts and their copies."""
        self._host.lose(engine)
        self.engines.lose(engine)

    def expect(self, tenant: str, tools: tuple[str, ...]) -> float | None:
        """The expected seconds of a pause for these tools; None where nothing is known."""
        return self.pauses.expect(tenant, tools) if self._learns else None

    def saw(self, loads: Sequence[EngineLoad], now: float) -> list[Verb]:
        """Take note of what runs on the engines. Copy the contexts back whose tools end soon, where
        there is room for them beside what runs and no application waits for it."""
        self.engines.saw(loads)
        room = {
            load.name: (load.kv_tokens or 0) - load.held
            for load in loads
            if load.model not in self._pressed
        }
        verbs: list[Verb] = []
        for engine, context in self.early.due(now, room):
            self._host.forget(engine, context)
            verbs.append(RetainContext(engine, context, Retention.KEEP))
            if (found := self._open.get(context)) is not None:
                self._open[context] = *found[:2], Strategy.PRESERVE
        return verbs

    def gives_up(self, paused: PausedContext) -> bool:
        """Whether the application should give up its place: others use it better in the pause."""
        costs = self.engines.of(paused.engine)
        if costs is None:
            return False
        found = waste(paused.tokens, paused.pause_s, costs, paused.load)
        return found.preserve > LOST * min(found.discard, found.swap)

    def begin(self, paused: PausedContext, pressed: bool) -> list[Verb]:
        """Decide about a context; `pressed` says that an application waits for room."""
        costs = self.engines.of(paused.engine)
        found: Waste | None = None
        strategy = Strategy.PRESERVE
        if pressed and costs is not None:
            found = waste(paused.tokens, paused.pause_s, costs, paused.load)
            strategy = found.best
        elif pressed:
            strategy = Strategy.SWAP
        verbs = self._verbs(paused, strategy)
        self._open[paused.context] = paused, found, strategy
        self.early.forget(paused.context)
        moves = not self.engines.copies_itself(paused.engine)
        if costs is not None and moves and self.is_copied(paused.engine, paused.context):
            at, copy_s = paused.since + paused.pause_s, costs.copy_s * paused.tokens
            if copy_s > LONG_COPY * costs.step_s:
                swapped = Swapped(paused.engine, paused.tokens, copy_s, at)
                self.early.add(paused.context, swapped)
        return verbs

    def press(self, contexts: Iterable[str], now: float) -> list[Verb]:
        """An application has begun to wait for room: decide anew about contexts that stayed.

        The rest of each context's pause counts. A pause that lasts longer than expected is expected
        to last as long again.
        """
        verbs: list[Verb] = []
        for context in contexts:
            found = self._open.get(context)
            if found is None or found[2] is not Strategy.PRESERVE:
                continue
            paused, lasted = found[0], now - found[0].since
            left_s = paused.pause_s - lasted if lasted < paused.pause_s else lasted
            again = self.begin(replace(paused, pause_s=left_s, since=now), True)
            if self.is_copied(paused.engine, context):  # the engine copies what it holds
                verbs.append(RetainContext(paused.engine, context, Retention.KEEP))
            if self._open[context][2] is not Strategy.PRESERVE:
                verbs += again
            self._open[context] = paused, *self._open[context][1:]
        return verbs

    def resumed(self, context: str, now: float, tokens: int) -> None:
        """A call of `tokens` tokens continues the context: learn from its pause and from what the
        tools returned, and log what was wasted."""
        self.early.forget(context)
        found = self._open.pop(context, None)
        if found is None:
            return
        paused, predicted, strategy = found
        lasted = now - paused.since
        self.pauses.learn(paused.tenant, paused.tools, lasted)
        self.results.learn(paused.tenant, paused.tools, max(0, tokens - paused.tokens))
        if predicted is not None and (costs := self.engines.of(paused.engine)) is not None:
            true = waste(paused.tokens, lasted, costs, paused.load)
            log.info(
                "pause of %.3f s (predicted %.3f s), %d tokens: %s for %.1f token-seconds "
                "(predicted %.1f), best was %s for %.1f",
                lasted,
                paused.pause_s,
                paused.tokens,
                strategy.value,
                true.of(strategy),
                predicted.of(strategy),
                true.best.value,
                true.of(true.best),
            )

    def waits(self, context: str) -> bool:
        """Whether the context's call waits for its tools."""
        return context in self._open and self._open[context][0].stops

    def is_copied(self, engine: str, context: str) -> bool:
        """Whether the context is in host memory."""
        return self._host.has(engine, context)

    def freed(self, engine: str, context: str) -> None:
        """The context was freed, and its copy with it."""
        self._open.pop(context, None)
        self.early.forget(context)
        self._host.forget(engine, context)

    def _verbs(self, paused: PausedContext, strategy: Strategy) -> list[Verb]:
        engine, context = paused.engine, paused.context
        pause_s = LONG_S if strategy is Strategy.DISCARD else paused.pause_s
        advice = AdviseContext(engine, context, pause_s, None)
        gone = None
        if strategy is Strategy.SWAP:
            copy = HostCopy(paused.tokens, paused.since + paused.pause_s)
            most = self.engines.most_copied(engine)
            gone = self._host.add(engine, context, copy, most, paused.since)
        if gone is None:
            return [advice, RetainContext(engine, context, Retention.EVICTABLE)]
        dropped = [RetainContext(engine, old, Retention.DROP) for old in gone]
        return [advice, RetainContext(engine, context, Retention.SWAP), *dropped]
