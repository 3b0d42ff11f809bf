"""Objective deduction (Parrot section 5.2): what each call should be run for, sinks first.

A sink without a criterion is for latency, since a user most likely waits for it. A throughput
output marks its whole ancestry, except where a latency output needs the same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Calls, Plan

_STRICTEST_FIRST = (Criterion.LATENCY, Criterion.TTFT, Criterion.TPOT, Criterion.THROUGHPUT)


def stricter(one: Criterion, other: Criterion) -> Criterion:
    """Which of the two the other's reader can live with."""
    return min(one, other, key=_STRICTEST_FIRST.index)


def objectives(graph: Graph, plan: Plan, calls: Calls) -> Mapping[str, Criterion]:
    """The strictest of a call's own criteria and its consumers' objectives."""
    found: dict[str, Criterion] = {}

    def hurries(child: str) -> bool:
        """A call that others wait for has to be whole, so of ttft and tpot they want latency."""
        objective = found.get(child) or plan.objective.get(child, Criterion.LATENCY)
        return objective is not Criterion.THROUGHPUT

    for call, news in calls.items():
        wanted = [plan.criteria[v] for v in graph.nodes[call].writes if v in plan.criteria]
        was = plan.objective.get(call)
        # One that was for throughput has no other consumer in a hurry: no need to ask them all.
        others = () if was is Criterion.THROUGHPUT else graph.downstream(call)
        if any(map(hurries, chain(news, others))):
            wanted.append(Criterion.LATENCY)
        elif any(True for _ in graph.downstream(call)):
            wanted.append(Criterion.THROUGHPUT)
        found[call] = min(wanted, key=_STRICTEST_FIRST.index, default=Criterion.LATENCY)
    return found
