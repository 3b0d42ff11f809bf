"""The plan of a session's calls, kept up to date as its graph grows and readers come."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes import Plan, analyse, stricter


class Planning:
    """What the passes say, computed when it is asked for: a started call keeps the plan it has."""

    def __init__(self, graph: Graph, without: frozenset[str]) -> None:
        self.criteria: dict[str, Criterion] = {}  # variable → the strictest that a reader gave
        self.plan = Plan(self.criteria)
        self._graph = graph
        self._without = without  # passes that are switched off
        self._changed: dict[str, None] = {}  # calls to be planned anew, with all above them
        self._started: set[str] = set()
        self._said: dict[str, tuple[int, Criterion, str]] = {}  # of each call that has not started
        self._moved: dict[str, None] = {}  # those of them of which something else is said now

    @property
    def due(self) -> bool:
        """Whether something has changed since the last `update`."""
        return bool(self._changed)

    def add(self, call: str) -> None:
        """The graph has got `call`."""
        self._changed[call] = None

    def want(self, variable: str, criterion: Criterion) -> None:
        """A reader of `variable` cares for `criterion`; of two the stricter is kept."""
        known = self.criteria.get(variable)
        found = criterion if known is None else stricter(known, criterion)
        if found is known:
            return
        self.criteria[variable] = found
        producer = self._graph.producer.get(variable)
        if producer is not None and producer not in self._started:
            self._changed[producer] = None

    def start(self, call: str) -> None:
        """An engine has got `call`, or it has ended: what comes now changes nothing about it."""
        self._started.add(call)
        self._said.pop(call, None)

    def update(self) -> Sequence[str]:
        """Plan anew what has changed; the calls that this was about."""
        if not self._changed:
            return ()
        calls = analyse(self._graph, self.plan, self._changed, self._started, self._without)
        self._changed.clear()
        for call in calls:
            advice = self.plan.advice(call)
            if self._said.setdefault(call, advice) != advice:
                self._said[call] = advice
                self._moved[call] = None
        return calls

    def take_moved(self) -> Sequence[str]:
        """Calls of which `update` found something else than before, started ones left out."""
        moved = [call for call in self._moved if call in self._said]
        self._moved.clear()
        return moved
