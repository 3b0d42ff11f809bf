"""Depth: the longest distance of a call to a sink, 0 for a call that nothing waits for."""

from __future__ import annotations

from collections.abc import Mapping

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Calls, Plan

# What is further away counts as so far: a call that joins the end of a long chain changes no more
# than so many above it, which takes 0.1 ms.
MOST_DEPTH = 16


def depth(graph: Graph, plan: Plan, calls: Calls) -> Mapping[str, int]:
    """One more than the deepest consumer's. It only grows, as consumers are only added."""
    found: dict[str, int] = {}
    for call, news in calls.items():
        below = (found.get(c, plan.depth.get(c, 0)) + 1 for c in news)
        found[call] = min(max(below, default=0), MOST_DEPTH)
        found[call] = max(found[call], plan.depth.get(call, 0))
    return found
