"""The analysis passes over a session's graph, listed once, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weftline_server.graph.graph import Graph
from weftline_server.passes.depth import depth
from weftline_server.passes.groups import groups
from weftline_server.passes.objectives import objectives, stricter
from weftline_server.passes.plan import Pass, Plan
from weftline_server.passes.prefixes import prefixes

__all__ = ["PASSES", "Plan", "affected", "analyse", "stricter"]

# Name, as it can be switched off → the field of the plan that it fills, and the pass.
PASSES: Mapping[str, tuple[str, Pass]] = {
    "depth": ("depth", depth),
    "objective": ("objective", objectives),
    "groups": ("group", groups),
    "prefix": ("prefixes", prefixes),
}


def analyse(
    graph: Graph,
    plan: Plan,
    calls: Sequence[str],
    without: frozenset[str] = frozenset(),
) -> None:
    """Bring `plan` up to date for `calls`, by every pass that is not named in `without`.

    `calls` come from `affected`: what they do not hold is as it was.
    """
    for name, (field, run) in PASSES.items():
        if name not in without:
            getattr(plan, field).update(run(graph, plan, calls))


def affected(graph: Graph, changed: Iterable[str], started: frozenset[str] | set[str]) -> list[str]:
    """The changed calls and all above them that have not started, consumers before producers.

    Only these can be planned anew when calls are added or a reader comes: a started call keeps the
    plan it was started with, and so do its producers, which have ended. The cost is theirs alone,
    however large the session is.
    """
    order: list[str] = []
    seen: set[str] = set()
    for start in changed:
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
            elif parent not in seen and parent not in started:
                seen.add(parent)
                path.append((parent, graph.upstream(parent)))
    order.reverse()
    return order
