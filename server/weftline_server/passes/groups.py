"""Task groups (Parrot section 5.2): calls that feed one consumer, and so should finish together."""

from __future__ import annotations

from dataclasses import replace

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Plan


def groups(graph: Graph, plan: Plan) -> Plan:
    """Fill `plan.group`: calls of equal depth under one consumer; a lone producer has none."""
    found: dict[str, str] = {}
    for call in graph.nodes:
        depths: dict[int, list[str]] = {}
        for parent in graph.upstream(call):
            depths.setdefault(plan.depth.get(parent, 0), []).append(parent)
        for level, parents in depths.items():
            if len(parents) > 1:
                for parent in parents:
                    found.setdefault(parent, f"{call}@{level}")
    return replace(plan, group=found)
