"""Depth: the longest distance of a primitive to a sink, counted in tasks; 0 for a sink."""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Findings, Plan

# Larger distances count as this one. So a call that joins the end of a long chain changes at most
# this many primitives above it, which takes 0.1 ms.
MOST_DEPTH = 16


def depth(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """One more than the deepest consumer's depth; primitives of one task are one step.

    A depth only grows, because consumers are only added.
    """
    found: dict[str, int] = {}
    for id, news in changed.items():
        task = graph.primitives[id].task
        below = (
            found.get(c, plan.depth.get(c, 0)) + (graph.primitives[c].task != task) for c in news
        )
        found[id] = min(max(below, default=0), MOST_DEPTH)
        found[id] = max(found[id], plan.depth.get(id, 0))
    return Findings(depth=found)
