"""The analysis passes over a session's graph, listed once, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes.depth import depth
from weftline_server.passes.groups import groups
from weftline_server.passes.objectives import objectives
from weftline_server.passes.plan import Pass, Plan
from weftline_server.passes.prefixes import prefixes

__all__ = ["PASSES", "Plan", "analyse"]

PASSES: Mapping[str, Pass] = {
    "depth": depth,
    "objective": objectives,
    "groups": groups,
    "prefix": prefixes,
}


def analyse(
    graph: Graph,
    criteria: Mapping[str, Criterion],
    without: frozenset[str] = frozenset(),
) -> Plan:
    """Run every pass not named in `without`; `criteria` are what readers gave, by variable."""
    plan = Plan(criteria=criteria)
    for name, run in PASSES.items():
        if name not in without:
            plan = run(graph, plan)
    return plan
