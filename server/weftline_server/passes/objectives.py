"""Objective deduction (Parrot section 5.2): what each call should be run for, sinks first.

A sink without a criterion is for latency, since a user most likely waits for it. A throughput
output marks its whole ancestry, except where a latency output needs the same call.
"""

from __future__ import annotations

from dataclasses import replace

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Plan

_STRICTEST_FIRST = (Criterion.LATENCY, Criterion.TTFT, Criterion.TPOT, Criterion.THROUGHPUT)


def objectives(graph: Graph, plan: Plan) -> Plan:
    """Fill `plan.objective`: the strictest of a call's own criteria and its consumers' ones."""
    found: dict[str, Criterion] = {}
    for call in reversed(graph.topological()):
        own = [plan.criteria[v] for v in graph.nodes[call].writes if v in plan.criteria]
        below = [found[child] for child in graph.downstream(call)]
        # A call that others wait for has to be whole, so of ttft and tpot they inherit latency.
        inherited = [c if c is Criterion.THROUGHPUT else Criterion.LATENCY for c in below]
        wanted = own + inherited
        found[call] = min(wanted, key=_STRICTEST_FIRST.index, default=Criterion.LATENCY)
    return replace(plan, objective=found)
