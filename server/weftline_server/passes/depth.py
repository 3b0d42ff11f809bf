"""Depth: the longest distance of a call to a sink, 0 for a call that nothing waits for."""

from __future__ import annotations

from dataclasses import replace

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Plan


def depth(graph: Graph, plan: Plan) -> Plan:
    """Fill `plan.depth`, consumers first."""
    found: dict[str, int] = {}
    for call in reversed(graph.topological()):
        found[call] = max((found[child] + 1 for child in graph.downstream(call)), default=0)
    return replace(plan, depth=found)
