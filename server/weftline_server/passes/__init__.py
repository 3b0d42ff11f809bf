"""The passes over a session's graph, listed once, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from weftline_server.graph.graph import Graph
from weftline_server.passes.depth import depth
from weftline_server.passes.flows import flows
from weftline_server.passes.groups import groups
from weftline_server.passes.objectives import objectives, stricter
from weftline_server.passes.plan import Changed, Findings, InvalidFindings, Pass, Plan, verify
from weftline_server.passes.prefixes import prefixes

__all__ = [
    "PASSES",
    "Findings",
    "InvalidFindings",
    "Pass",
    "Plan",
    "analyse",
    "apply",
    "stricter",
    "verify",
]

# By the name that switches a pass off. The findings of the upward passes spread from consumers to
# producers. Groups follow from depths. The last ones look at a primitive once, before it
# has a depth, and finding the same again would change nothing.
UPWARD: Mapping[str, Pass] = {"depth": depth, "objective": objectives}
GROUPING: Mapping[str, Pass] = {"groups": groups}
ONCE: Mapping[str, Pass] = {"prefix": prefixes, "flow": flows}
PASSES: Mapping[str, Pass] = {**UPWARD, **GROUPING, **ONCE}


def analyse(
    graph: Graph,
    plan: Plan,
    changed: Iterable[str],
    without: frozenset[str] = frozenset(),
) -> list[str]:
    """Bring `plan` up to date for the changed primitives and all that depend on them.

    Return the primitives that were looked at. Passes named in `without` are skipped. The upward
    passes stop where nothing changes any more, so the cost is that of the change, whatever the
    size of the session. A started primitive keeps the plan with which it started.

    Raises InvalidFindings, and then applies nothing of the pass at fault.
    """
    wave: Changed = {id: graph.downstream(id) for id in _consumers_first(graph, changed)}
    found = dict.fromkeys(wave)
    fresh = {id: below for id, below in wave.items() if id not in plan.depth}
    # A consumer's group changes with a producer that is new or has another depth.
    regrouped: dict[str, Collection[str]] = dict(fresh)
    for below in fresh.values():
        if below:
            regrouped.update(dict.fromkeys(below, ()))
    first = True
    while wave:
        before = [(id, plan.depth.get(id), plan.objective.get(id)) for id in wave]
        _run(UPWARD, graph, plan, wave, without)
        above: dict[str, list[str]] = {}
        for id, depth_was, objective_was in before:
            if plan.depth.get(id) != depth_was:
                regrouped.update(dict.fromkeys(graph.downstream(id), ()))
            elif plan.objective.get(id) is objective_was:
                continue
            for parent in graph.upstream(id):
                # The primitives of the first wave were planned after their consumers.
                if parent not in plan.started and not (first and parent in wave):
                    above.setdefault(parent, []).append(id)
        first, wave = False, above
        found.update(dict.fromkeys(above))
    if regrouped:
        _run(GROUPING, graph, plan, regrouped, without)
    if fresh:
        _run(ONCE, graph, plan, fresh, without)
    return list(found)


def _run(
    passes: Mapping[str, Pass],
    graph: Graph,
    plan: Plan,
    changed: Changed,
    without: frozenset[str],
) -> None:
    for name, run in passes.items():
        if not without or name not in without:
            apply(graph, plan, run(graph, plan, changed))


def apply(graph: Graph, plan: Plan, findings: Findings) -> None:
    """Apply all findings of one pass, or none. Raises InvalidFindings, CyclicGraph."""
    verify(graph, plan, findings)
    if findings.rewritten:
        graph.rewrite(findings.rewritten)
    plan.annotate(findings)


def _consumers_first(graph: Graph, primitives: Iterable[str]) -> list[str]:
    """The given primitives, each before those of them that it waits for directly."""
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
