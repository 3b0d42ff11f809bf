"""Carries what is found out about primitives from consumers to producers, until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Plan

V = TypeVar("V")


def upward(
    graph: Graph,
    plan: Plan,
    changed: Changed,
    known: Mapping[str, V],
    find: Callable[[str, Collection[str], Mapping[str, V]], V],
) -> dict[str, V]:
    """What `find` says of the changed primitives, and of those above them that change with them.

    `find` gets a primitive, those of its consumers that have changed, and the findings so far,
    which come before what was `known`. It is not asked about primitives that have started.
    """
    found: dict[str, V] = {}
    wave = changed
    while wave:
        above: dict[str, list[str]] = {}
        for id, news in wave.items():
            before = found[id] if id in found else known.get(id)
            found[id] = now = find(id, news, found)
            if now == before:
                continue
            for parent in graph.upstream(id):
                # In the first wave producers follow their consumers, so they have seen the change.
                if parent not in plan.started and not (wave is changed and parent in changed):
                    above.setdefault(parent, []).append(id)
        wave = above
    return found
