"""The plan of a session's primitives, kept up to date as the graph grows and readers come."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weftline.contract.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes import Plan, analyse, stricter
from weftline_server.session.reuse import Reuse


class Planning:
    """Runs the passes over what has changed. An ended primitive keeps the plan that it has."""

    def __init__(self, graph: Graph, without: frozenset[str]) -> None:
        self.criteria: dict[str, Criterion] = {}  # variable → the strictest that a reader gave
        self._presumed: dict[str, Criterion] = {}  # variable → that of the get that sent its call
        self.plan = Plan(self.criteria, self._presumed)
        self.reuse = Reuse()
        self._graph = graph
        self._without = without  # passes that are switched off
        self._changed: dict[str, None] = {}  # primitives to plan anew, with all above them
        self._later: set[str] = set()  # new primitives that are planned when they are added again
        self._told: dict[str, tuple[int, Criterion, str]] = {}  # advice, until a primitive ends

    @property
    def is_due(self) -> bool:
        """Whether something has changed since the last `update`."""
        return bool(self._changed)

    @property
    def advised(self) -> Collection[str]:
        """The planned primitives that have not ended, so that their advice may still change."""
        return self._told.keys()

    def add(self, primitives: Iterable[str]) -> None:
        """The graph has these new primitives, which are to be planned now."""
        found = dict.fromkeys(primitives)
        self._later.difference_update(found)
        self._changed.update(found)

    def postpone(self, primitives: Iterable[str]) -> None:
        """The graph has these new primitives, which are not planned until they are added."""
        self._later.update(primitives)

    def want(self, variable: str, criterion: Criterion) -> None:
        """A reader of `variable` asks for `criterion`. The stricter of two is kept."""
        known = self.criteria.get(variable)
        found = criterion if known is None else stricter(known, criterion)
        if found is known:
            return
        self.criteria[variable] = found
        producer = self._graph.producer.get(variable)
        if producer is None or producer in self.plan.ended or producer in self._later:
            return
        self._changed[producer] = None

    def presume(self, variables: Iterable[str], criterion: Criterion) -> None:
        """The get that sends these outputs asks for `criterion`. It holds for each of them that
        nothing reads, until somebody asks for that one."""
        self._presumed.update(dict.fromkeys(variables, criterion))

    def asked(self, variable: str, criterion: Criterion | None) -> None:
        """A reader has come. Without a criterion it wants no more than a variable has by itself,
        which is latency."""
        if criterion is None and variable in self._presumed:
            criterion = Criterion.LATENCY
        if criterion is not None:
            self.want(variable, criterion)

    def start(self, primitive: str) -> None:
        """An engine has the primitive, so only its objective may change."""
        self.plan.started.add(primitive)

    def end(self, primitive: str) -> None:
        """The primitive has ended, and reads nothing more."""
        self.plan.started.add(primitive)
        self.plan.ended.add(primitive)
        self._told.pop(primitive, None)
        self.reuse.end(primitive)

    def take_rewired(self) -> Collection[str]:
        """Return and clear the primitives that were rewired since the last `update`."""
        found = self.plan.rewired
        if found:
            self.plan.rewired = {}
        return found

    def update(self) -> list[str]:
        """Run the passes over what has changed. Return the primitives whose advice differs now."""
        if not self._changed:
            return []
        planned = analyse(self._graph, self.plan, self._changed, self._without)
        self._changed.clear()
        moved = []
        for id in planned:
            if id in self.plan.ended:
                continue
            self.reuse.add(id, self.plan.prefixes.get(id, ()))
            advice = self.plan.advice(id)
            if self._told.setdefault(id, advice) != advice:
                self._told[id] = advice
                moved.append(id)
        return moved
