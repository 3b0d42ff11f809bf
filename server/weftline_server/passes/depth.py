"""Depth: the longest distance of a primitive to a sink, counted in tasks; 0 for a sink."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Findings, Plan
from weftline_server.passes.propagation import upward

# Larger distances count as this one. So a call that joins the end of a long chain changes at most
# this many primitives above it, which takes 0.1 ms.
MOST_DEPTH = 16


def depth(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """One more than the deepest consumer's depth; primitives of one task are one step.

    A depth only grows, because consumers are only added.
    """
    primitives, known = graph.primitives, plan.depth

    def of(id: str, news: Collection[str], found: Mapping[str, int]) -> int:
        deepest = found[id] if id in found else known.get(id, 0)
        task = primitives[id].task
        for consumer in news:
            below = found[consumer] if consumer in found else known.get(consumer, 0)
            deepest = max(deepest, below + (primitives[consumer].task != task))
        return min(deepest, MOST_DEPTH)

    return Findings(depth=upward(graph, plan.started, changed, known, of))
