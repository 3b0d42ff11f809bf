"""What is known of the engines whose contexts pause: their costs, what runs there, host memory."""

from __future__ import annotations

from collections.abc import Sequence

from weftline_engine.api import KvCosts
from weftline_server.schedule.memory.rank import MemoryNeed
from weftline_server.schedule.memory.waste import Load, waste
from weftline_server.schedule.placement.round_data import EngineLoad


class EngineCosts:
    """The engines that take work. One that announces no costs gets copies up to the size of its
    host memory, or of its pool.
    """

    def __init__(self) -> None:
        self._costs: dict[str, KvCosts] = {}
        self._pools: dict[str, int] = {}  # the most tokens of copies where no costs are known
        self._hosted: set[str] = set()  # engines without costs that have host memory
        self._present: dict[str, tuple[KvCosts, Load]] = {}  # by model

    def add(
        self, engine: str, kv_tokens: int | None, costs: KvCosts | None, host_tokens: int = 0
    ) -> None:
        """Take note of an engine that takes work, and of its host memory if it measured no
        costs."""
        self._pools[engine] = host_tokens or kv_tokens or 0
        self._hosted.discard(engine)
        if host_tokens:
            self._hosted.add(engine)
        self._costs.pop(engine, None)
        if costs is not None:
            self._costs[engine] = costs

    def lose(self, engine: str) -> None:
        """Forget an engine that is gone."""
        self._pools.pop(engine, None)
        self._hosted.discard(engine)
        gone = self._costs.pop(engine, None)
        self._present = {one: told for one, told in self._present.items() if told[0] is not gone}

    def saw(self, loads: Sequence[EngineLoad]) -> None:
        """Take note of what runs on the engines. The first one of a model stands for all."""
        for load in reversed(loads):
            if (costs := self._costs.get(load.name)) is not None:
                self._present[load.model] = costs, Load(load.running, load.held)

    def of(self, engine: str) -> KvCosts | None:
        """What the engine has measured; None if it has measured nothing."""
        return self._costs.get(engine)

    def copies_itself(self, engine: str) -> bool:
        """Whether the engine copies what its host memory holds by itself."""
        return engine in self._hosted

    def most_copied(self, engine: str) -> int:
        """The most tokens of the engine's copies."""
        costs = self._costs.get(engine)
        return self._pools.get(engine, 0) if costs is None else costs.host_tokens

    @property
    def hosts(self) -> frozenset[str]:
        """The engines that copy contexts to host memory."""
        measured = (name for name, costs in self._costs.items() if costs.host_tokens)
        return frozenset((*measured, *self._hosted))

    def load(self, model: str) -> Load:
        """What ran on the engines of a model, as last seen."""
        _, load = self._present.get(model, (None, Load()))
        return load

    def need(
        self, model: str, held: int, output: int, pause_s: float, later: int
    ) -> MemoryNeed | None:
        """What a call with a prompt of `held` tokens needs until its application has computed
        `later` tokens after a pause. None where no engine has measured its costs.

        The strategy is the one that would be chosen with the present load.
        """
        first = next(iter(self._costs.values()), None)
        costs, load = self._present.get(model, (first, Load()))
        if costs is None:
            return None
        return MemoryNeed(
            output,
            costs.step_s,
            held=held,
            pause_s=pause_s,
            strategy=waste(held + output, pause_s, costs, load).best,
            later=later,
            again_s=costs.fill_s + costs.step_s / costs.chunk,
            copy_s=costs.copy_s,
        )
