"""Objective deduction (Parrot section 5.2): the criterion of each primitive, from the sinks up.

A sink without a criterion gets latency, because a user most likely waits for it. A throughput
output marks its whole ancestry, except where a latency output needs the same primitive.
"""

from __future__ import annotations

from itertools import chain

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Findings, Plan

_STRICTEST_FIRST = (Criterion.LATENCY, Criterion.TTFT, Criterion.TPOT, Criterion.THROUGHPUT)


def stricter(one: Criterion, other: Criterion) -> Criterion:
    """The stricter of two criteria."""
    return min(one, other, key=_STRICTEST_FIRST.index)


def objectives(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """The strictest of a primitive's own criteria and the demands of its consumers."""
    found: dict[str, Criterion] = {}

    def objective(id: str) -> Criterion:
        return found.get(id) or plan.objective.get(id, Criterion.LATENCY)

    def demand(child: str, task: str) -> Criterion:
        """What a consumer asks of its producer.

        Another task needs the whole value, so it turns ttft and tpot into latency. The next output
        of the same task passes its own objective on.
        """
        asked = objective(child)
        if graph.primitives[child].task == task or asked is Criterion.THROUGHPUT:
            return asked
        return Criterion.LATENCY

    for id, news in changed.items():
        primitive = graph.primitives[id]
        wanted = [plan.criteria[v] for v in primitive.writes if v in plan.criteria]
        # A primitive that was for throughput has no other consumer in a hurry: skip the known ones.
        known = () if plan.objective.get(id) is Criterion.THROUGHPUT else graph.downstream(id)
        for child in chain(news, known):
            wanted.append(demand(child, primitive.task))
            if wanted[-1] is Criterion.LATENCY:
                break
        else:
            if any(True for _ in graph.downstream(id)):
                wanted.append(Criterion.THROUGHPUT)
        found[id] = min(wanted, key=_STRICTEST_FIRST.index, default=Criterion.LATENCY)
    return Findings(objective=found)
