"""Batch and pipeline: which edges carry a list item by item (Teola's second and fourth pass).

Teola clones the steps below a list, one for each part of the list. Here the edge says that items
travel, and one step takes the items as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weftline.contract.transforms import gives_items
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, ItemFlow, Primitive, Read
from weftline_server.passes.plan import Changed, Findings, Plan, readers_of


def pipeline(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Let a step take the items of a list while a call still writes it."""

    def gives(producer: Primitive, reader: ItemFlow) -> bool:
        said = producer.items
        return said is not None and bool(gives_items((*said.says, *reader.through)))

    return _widened(graph, plan, changed, lambda _: False, gives)


def batch(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Let a step take the results of the step before it batch by batch.

    Batches pay where the step before has more items than an efficient batch of its engine, or where
    the step before gets its own items one by one. A step with so many items reports its results as
    they come even if the next step takes the whole list: an attempt after a failure then keeps
    these results.
    """

    def gives(producer: Primitive, reader: ItemFlow) -> bool:
        return (
            producer.items is not None
            and producer.items.gives
            and producer.items.streams
            and not reader.through
        )

    return _widened(graph, plan, changed, _has_batches, gives)


def _has_batches(primitive: Primitive) -> bool:
    items = primitive.items
    return items is not None and 0 < items.batch < items.count


def _widened(
    graph: Graph,
    plan: Plan,
    changed: Changed,
    streams: Callable[[Primitive], bool],
    gives: Callable[[Primitive, ItemFlow], bool],
) -> Findings:
    """Widen edges to items, producers first: a reader that gets items gives items."""
    rewritten: dict[str, Primitive] = {}
    readers = {id: None for id in readers_of(changed, plan) if has_items(graph.primitives[id])}
    for id in _producers_first(graph, readers):
        primitive = graph.primitives[id]
        items = primitive.items
        if items is None:
            continue
        widened = _edge(graph, rewritten, primitive, items, gives)
        if widened != primitive.reads:
            rewritten[id] = primitive.reading(widened, streams=True)
        elif not items.streams and not items.says and streams(primitive):
            rewritten[id] = primitive.reading(primitive.reads, streams=True)
    return Findings(rewritten=rewritten)


def has_items(primitive: Primitive) -> bool:
    """Whether the primitive has a list. A call has none, and most primitives are calls."""
    items = primitive.items
    return items is not None and bool(items.takes or items.batch)


def _edge(
    graph: Graph,
    rewritten: Mapping[str, Primitive],
    primitive: Primitive,
    items: ItemFlow,
    gives: Callable[[Primitive, ItemFlow], bool],
) -> tuple[Read, ...]:
    """The reads of a primitive, with the one that it takes item by item as such."""
    whole = Read(items.takes)
    above = graph.producer.get(items.takes)
    if above is None or whole not in primitive.reads:
        return primitive.reads
    if not gives(rewritten.get(above) or graph.primitives[above], items):
        return primitive.reads
    wide = Read(items.takes, Flow.ITEMS)
    return tuple([wide if read == whole else read for read in primitive.reads])


def _producers_first(graph: Graph, readers: Mapping[str, None]) -> list[str]:
    """The readers, producers first: each stands behind the readers whose items it takes."""
    order: dict[str, None] = {}
    for id in readers:
        chain: list[str] = []
        while id in readers and id not in order and id not in chain:
            chain.append(id)
            items = graph.primitives[id].items
            id = graph.producer.get(items.takes, "") if items is not None else ""
        order.update(dict.fromkeys(reversed(chain)))
    return list(order)
