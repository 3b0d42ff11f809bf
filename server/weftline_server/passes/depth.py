"""Depth: the longest distance of a call to a sink, 0 for a call that nothing waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Plan


def depth(graph: Graph, plan: Plan, calls: Sequence[str]) -> Mapping[str, int]:
    """One more than the deepest consumer's."""
    found: dict[str, int] = {}
    for call in calls:
        below = (found.get(c, plan.depth.get(c, 0)) + 1 for c in graph.downstream(call))
        found[call] = max(below, default=0)
    return found
