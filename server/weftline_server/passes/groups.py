"""Task groups (Parrot section 5.2): calls that feed one consumer, and so should finish together."""

from __future__ import annotations

from collections.abc import Mapping

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Calls, Plan


def groups(graph: Graph, plan: Plan, calls: Calls) -> Mapping[str, str]:
    """Calls of equal depth under one consumer are a group; a lone producer is in none.

    A call with several consumers goes with the first of them that makes it a group.
    """
    found: dict[str, str] = {}
    for call in calls:
        depths: dict[int, list[str]] = {}
        for parent in graph.upstream(call):
            depths.setdefault(plan.depth.get(parent, 0), []).append(parent)
        for level, parents in depths.items():
            if len(parents) > 1:
                for parent in parents:
                    found.setdefault(parent, f"{call}@{level}")
    return found
