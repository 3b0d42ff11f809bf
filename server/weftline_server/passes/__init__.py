"""The analysis passes over a session's graph, listed once, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from weftline_server.graph.graph import Graph
from weftline_server.passes.depth import depth
from weftline_server.passes.groups import groups
from weftline_server.passes.objectives import objectives, stricter
from weftline_server.passes.plan import Calls, Pass, Plan
from weftline_server.passes.prefixes import prefixes

__all__ = ["PASSES", "Plan", "analyse", "stricter"]

# Name, as it can be switched off → the field of the plan that it fills, and the pass. What the
# first ones find goes up the graph; the others look at what these have found.
UPWARD: Mapping[str, tuple[str, Pass]] = {
    "depth": ("depth", depth),
    "objective": ("objective", objectives),
}
REST: Mapping[str, tuple[str, Pass]] = {
    "groups": ("group", groups),
    "prefix": ("prefixes", prefixes),
}
PASSES = {**UPWARD, **REST}


def analyse(
    graph: Graph,
    plan: Plan,
    changed: Iterable[str],
    started: Collection[str] = frozenset(),
    without: frozenset[str] = frozenset(),
) -> list[str]:
    """Bring `plan` up to date for what has changed and all that depends on it; those calls.

    Passes that are named in `without` are left out. It goes up from the changed calls as far as
    something becomes another, so that the cost is that of the change, however large the session
    is. A started call keeps the plan it was started with, and so do its producers.
    """
    wave: dict[str, Sequence[str]] = {
        call: list(graph.downstream(call)) for call in _consumers_first(graph, changed)
    }
    found = dict(wave)
    regrouped: dict[str, Sequence[str]] = dict(wave)
    first = True
    while wave:
        before = {call: (plan.depth.get(call), plan.objective.get(call)) for call in wave}
        _run(UPWARD, graph, plan, wave, without)
        above: dict[str, list[str]] = {}
        for call, (depth_was, objective_was) in before.items():
            deeper = plan.depth.get(call) != depth_was
            if deeper:
                regrouped.update(dict.fromkeys(graph.downstream(call), ()))
            elif plan.objective.get(call) is objective_was:
                continue
            for parent in graph.upstream(call):
                # Those of the first wave have been planned after their consumers.
                if parent not in started and not (first and parent in wave):
                    above.setdefault(parent, []).append(call)
        first, wave = False, dict(above)
        found.update(wave)
        regrouped.update(wave)
    _run(REST, graph, plan, regrouped, without)
    return list(found)


def _run(
    passes: Mapping[str, tuple[str, Pass]],
    graph: Graph,
    plan: Plan,
    calls: Calls,
    without: frozenset[str],
) -> None:
    for name, (field, run) in passes.items():
        if name not in without:
            getattr(plan, field).update(run(graph, plan, calls))


def _consumers_first(graph: Graph, calls: Iterable[str]) -> list[str]:
    """These calls, each before those of them that it waits for directly."""
    among = dict.fromkeys(calls)
    order: list[str] = []
    seen: set[str] = set()
    for start in among:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, graph.upstream(start))]
        while path:
            call, parents = path[-1]
            parent = next(parents, None)
            if parent is None:
                order.append(call)
                path.pop()
            elif parent not in seen and parent in among:
                seen.add(parent)
                path.append((parent, graph.upstream(parent)))
    order.reverse()
    return order
