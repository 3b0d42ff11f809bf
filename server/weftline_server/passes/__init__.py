"""The passes over a session's graph, listed once, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Primitive
from weftline_server.graph.wiring import Wiring
from weftline_server.passes.depth import depth
from weftline_server.passes.flows import flows
from weftline_server.passes.groups import groups
from weftline_server.passes.item_edges import batch, has_items, pipeline
from weftline_server.passes.joins import joins
from weftline_server.passes.objectives import objectives, stricter
from weftline_server.passes.order import has_order, order
from weftline_server.passes.plan import (
    Changed,
    Findings,
    InvalidFindings,
    Pass,
    Plan,
    has_reads,
    readers_of,
    verify,
)
from weftline_server.passes.prefixes import prefixes

__all__ = [
    "PASSES",
    "Findings",
    "InvalidFindings",
    "Pass",
    "Plan",
    "analyse",
    "apply",
    "consumers_first",
    "stricter",
    "verify",
]

# The passes, by the name that switches a pass off. The first ones go from the changed primitives up
# to their producers, as far as something changes. Groups follow from depths. The last ones look at
# a primitive once, before the primitive has a depth, and a second look would change nothing.
UPWARD: Mapping[str, Pass] = {"depth": depth, "objective": objectives}
GROUPING: Mapping[str, Pass] = {"groups": groups}
ONCE: Mapping[str, Pass] = {"prefix": prefixes}
# These passes give the edges of a primitive their flows. Each pass runs again after another pass
# has changed something, because an edge that goes away may let another edge stream. The second part
# says which primitives a pass may change: most submits have none for three of the five.
FLOWS: Mapping[str, tuple[Pass, Callable[[Primitive], bool]]] = {
    "order": (order, has_order),
    "flow": (flows, has_reads),
    "pipeline": (pipeline, has_items),
    "batch": (batch, has_items),
    "joins": (joins, has_reads),
}
PASSES: Mapping[str, Pass] = {
    **UPWARD,
    **GROUPING,
    **ONCE,
    **{name: run for name, (run, _) in FLOWS.items()},
}
MOST_ROUNDS = 8  # of the passes that run until nothing changes


def analyse(
    graph: Graph,
    plan: Plan,
    changed: Iterable[str],
    without: frozenset[str] = frozenset(),
) -> list[str]:
    """Bring `plan` up to date for the changed primitives and all that depend on them.

    Return the primitives that were looked at. Passes named in `without` are skipped. The upward
    passes stop where nothing changes any more, so the cost is that of the change, whatever the
    size of the session. A started primitive changes nothing but its objective, until it ends.

    Raises InvalidFindings, and then applies nothing of the pass at fault.
    """
    new = {id: graph.downstream(id) for id in consumers_first(graph, changed)}
    fresh = {id: below for id, below in new.items() if id not in plan.depth}
    found = dict.fromkeys(new)
    moved = dict.fromkeys(fresh)  # is new, or has another depth
    for name, upward in UPWARD.items():
        if name not in without:
            findings = upward(graph, plan, new)
            moved.update({id: None for id, d in findings.depth.items() if plan.depth.get(id) != d})
            found.update(dict.fromkeys(findings.depth or findings.objective))
            apply(graph, plan, findings)
    if moved:
        regrouped: dict[str, Collection[str]] = dict(fresh)
        for id in moved:
            regrouped.update(dict.fromkeys(graph.downstream(id), ()))
        for name, grouping in GROUPING.items():
            if name not in without:
                apply(graph, plan, grouping(graph, plan, regrouped))
    if fresh:
        for name, once in ONCE.items():
            if name not in without:
                apply(graph, plan, once(graph, plan, fresh))
        _give_flows(graph, plan, fresh, without)
    return list(found)


def _give_flows(graph: Graph, plan: Plan, fresh: Changed, without: frozenset[str]) -> None:
    """Run the passes over the edges in turn, until each has run since the last change of another.
    No pass changes anything when it runs twice in a row.
    """
    readers = [graph.primitives[id] for id in readers_of(fresh, plan)]
    turns = [
        run
        for name, (run, concerns) in FLOWS.items()
        if name not in without and any(map(concerns, readers))
    ]
    last: Pass | None = None  # the last one that has changed something
    for run in turns * MOST_ROUNDS:
        if run is last:
            return
        findings = run(graph, plan, fresh)
        apply(graph, plan, findings)
        if findings.rewritten or last is None:
            last = run


def apply(graph: Graph, plan: Plan, findings: Findings) -> None:
    """Apply all findings of one pass, or none. Raises InvalidFindings, CyclicGraph."""
    if not any(findings):
        return
    verify(graph, plan, findings)
    if findings.rewritten:
        plan.rewired.update(dict.fromkeys(graph.rewrite(findings.rewritten)))
    plan.annotate(findings)


def consumers_first(graph: Wiring, primitives: Iterable[str]) -> list[str]:
    """The given primitives, consumers first: each stands before its direct producers."""
    among = dict.fromkeys(primitives)
    if len(among) == 1:
        return list(among)
    order: list[str] = []
    seen: set[str] = set()
    for start in among:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(graph.upstream(start)))]
        while path:
            id, parents = path[-1]
            parent = next(parents, None)
            if parent is None:
                order.append(id)
                path.pop()
            elif parent not in seen and parent in among:
                seen.add(parent)
                path.append((parent, iter(graph.upstream(parent))))
    order.reverse()
    return order
