"""The primitives that are ready and held back: primitives of large submits, and primitives that
only an undecided branch may need.

All tasks of a submit enter the graph at once, because a submit is taken whole or not at all. To
plan and start 10,000 takes 0.5 s, in which no other client would get an answer. So planning and
starting are done in parts, each in a turn of its own. `Draft` does the same for the work before the
tasks enter.

A primitive that changes something outside the graph waits until the graph certainly needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from weftline_server.graph.graph import Graph
from weftline_server.session import events as ev
from weftline_server.session.need import Runs, above
from weftline_server.session.task import PrimitiveRun

PART = 512  # primitives and edges of a turn, which takes 10 to 30 ms


class HoldQueue:
    """The held primitives, in the order in which they are planned and started.

    All are planned before any is started. `branches` says whether the graph has branches. A
    decision has left the variables in `released` without a reader.
    """

    def __init__(self) -> None:
        self.branches = False
        self.released: set[str] = set()
        self._unsure: dict[str, None] = {}
        self._again: dict[str, None] = {}  # of these, what may be certain by now
        self._plan: deque[tuple[str, int]] = deque()  # each with the number of its edges
        self._start: deque[PrimitiveRun] = deque()

    def __bool__(self) -> bool:
        return bool(self._start)

    def is_unsure(self, primitive: str) -> bool:
        """Whether the primitive waits until it is certain that it is needed."""
        return primitive in self._unsure

    def until_certain(self, primitive: str) -> None:
        """Hold a primitive that perhaps nothing needs."""
        self._unsure[primitive] = None

    def look_above(self, graph: Graph, runs: Runs, variables: Iterable[str]) -> None:
        """Something needs these variables now: what they depend on may be certain."""
        if self._unsure:
            found = (id for id in above(graph, runs, variables) if id in self._unsure)
            self._again.update(dict.fromkeys(found))

    def take_unsure(self) -> list[str]:
        """The primitives to look at again, which are held no more."""
        found = list(self._again)
        self._again.clear()
        for id in found:
            del self._unsure[id]
        return found

    @staticmethod
    def are_many(primitives: Collection[str]) -> bool:
        """Whether these primitives are too many for one turn of the event loop."""
        return len(primitives) > PART

    def hold(
        self, runs: Collection[PrimitiveRun], order: Iterable[tuple[str, int]]
    ) -> list[ev.Action]:
        """Hold new primitives, which are in the graph.

        `order` names each with the number of its edges, consumers before their producers, so that
        none is planned twice.
        """
        was_idle = not self
        self._plan.extend(order)
        for run in runs:
            run.held = True
        self._start.extend(runs)
        return [ev.GoOn()] if was_idle else []

    def planned_next(self) -> list[str]:
        """The next primitives to plan; empty when all are planned."""
        found: list[str] = []
        size = 0
        while self._plan and size < PART:
            id, edges = self._plan.popleft()
            found.append(id)
            size += 1 + edges
        return found

    def started_next(self) -> list[PrimitiveRun]:
        """Release the next primitives to start. Empty until all are planned."""
        if self._plan:
            return []
        runs = [self._start.popleft() for _ in range(min(PART, len(self._start)))]
        for run in runs:
            run.held = False
        return runs
