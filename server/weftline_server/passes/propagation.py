"""Carries what is found out about primitives from consumers to producers, until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import TypeVar

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed

V = TypeVar("V")


def upward(
    graph: Graph,
    fixed: Container[str],
    changed: Changed,
    known: Mapping[str, V],
    find: Callable[[str, Collection[str], Mapping[str, V]], V],
) -> dict[str, V]:
    """The findings of the changed primitives, and of their producers whose findings change with
    them.

    `find(primitive, consumers, found)` returns a primitive's finding. `consumers` are the
    primitive's consumers whose findings have changed. `found` has the findings so far; where it has
    none, the finding in `known` still holds. `find` is not called for producers that are `fixed`.
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
                if parent not in fixed and not (wave is changed and parent in changed):
                    above.setdefault(parent, []).append(id)
        wave = above
    return found
