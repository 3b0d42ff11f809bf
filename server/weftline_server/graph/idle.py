"""Tells which edges of order change nothing: the steps at their ends may run in any order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing
from weftline_server.graph.primitive import Effects, Flow, Primitive, Read

_MOST = 256  # primitives to look at on each side; an edge with more stays


def is_idle(graph: Graph, reader: Primitive, read: Read) -> bool:
    """Whether `reader` need not wait for the writer of a variable that it does not read.

    The order of the two orders all above the writer and all below the reader. It changes nothing if
    no two of these touch the same place while one of them changes it.
    """
    if read.flow is not Flow.ORDER or (writer := graph.producer.get(read.variable)) is None:
        return False
    if _meet(graph.primitives[writer], reader) and any(
        map(_changes, (graph.primitives[writer], reader))
    ):
        return False  # most often, and there is no need to look further
    before = _reached(graph, writer, graph.upstream)
    behind = _reached(graph, reader.id, graph.downstream)
    if max(len(before), len(behind)) > _MOST:
        return False
    changed = [list(filter(_changes, side)) for side in (before, behind)]
    pairs = [(one, other) for one in changed[0] for other in behind]
    pairs += [(one, other) for one in before for other in changed[1]]
    return not any(_meet(one, other) for one, other in pairs)


def _reached(
    graph: Graph, start: str, following: Callable[[str], Collection[str]]
) -> list[Primitive]:
    """The primitive and those that follow from it; a few more than `_MOST` if there are more."""
    found = {start: None}
    waiting = [start]
    while waiting and len(found) <= _MOST:
        fresh = [id for id in following(waiting.pop()) if id not in found]
        found.update(dict.fromkeys(fresh))
        waiting += fresh
    return [graph.primitives[id] for id in found]


def _changes(primitive: Primitive) -> bool:
    body = primitive.body
    return primitive.effects is not Effects.NONE or (isinstance(body, Growing) and body.changes)


def _meet(one: Primitive, other: Primitive) -> bool:
    """Whether their order can matter, if one of them changes something."""
    if Effects.ONCE in (one.effects, other.effects) or one.resource == other.resource:
        return True
    sides = (one, other)
    if not any(side.traits.anywhere for side in sides):
        return False
    return all(side.traits.anywhere or side.resource for side in sides)
