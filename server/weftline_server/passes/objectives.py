"""Objective deduction (Parrot section 5.2): the criterion of each primitive, from the sinks up.

A sink without a criterion gets that of the get that has sent it, and else latency, because a user
most likely waits for it. A throughput output marks its whole ancestry, except where a latency
output needs the same primitive. Primitives on an engine are marked, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from weftline.contract.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Findings, Plan
from weftline_server.passes.propagation import upward

_STRICTEST_FIRST = (Criterion.LATENCY, Criterion.TTFT, Criterion.TPOT, Criterion.THROUGHPUT)


def stricter(one: Criterion, other: Criterion) -> Criterion:
    return min(one, other, key=_STRICTEST_FIRST.index)


def strictest(criteria: Sequence[Criterion]) -> Criterion:
    """The strictest of the criteria; latency if there is none."""
    if not criteria or Criterion.LATENCY in criteria:
        return Criterion.LATENCY
    return min(criteria, key=_STRICTEST_FIRST.index)


def objectives(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """The strictest of a primitive's own criteria and the demands of its consumers."""
    known = plan.objective

    def of(id: str, news: Collection[str], found: Mapping[str, Criterion]) -> Criterion:
        primitive = graph.primitives[id]
        wanted = [plan.criteria[v] for v in primitive.writes if v in plan.criteria]
        consumers = graph.downstream(id)
        if not consumers:
            presumed = [plan.presumed[v] for v in primitive.writes if v in plan.presumed]
            return strictest(wanted or presumed)
        # A call that was for throughput has no other consumer in a hurry: skip the known ones.
        was = found.get(id) or known.get(id)
        for child in chain(news, () if was is Criterion.THROUGHPUT else consumers):
            asked = found.get(child) or known.get(child, Criterion.LATENCY)
            is_next_output = graph.primitives[child].task == primitive.task
            wanted.append(asked if is_next_output else _whole(asked))
            if wanted[-1] is Criterion.LATENCY:
                return Criterion.LATENCY
        return strictest([*wanted, Criterion.THROUGHPUT])

    return Findings(objective=upward(graph, plan.ended, changed, known, of))


def _whole(asked: Criterion) -> Criterion:
    """The criterion that a consumer with `asked` sets for a producer of its whole input."""
    return asked if asked is Criterion.THROUGHPUT else Criterion.LATENCY
