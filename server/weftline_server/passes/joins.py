"""Joins: which prompts are filled with a list's first items before the list is complete.

The text of a list that a prompt joins begins with its first items, in their order. So the prompt is
known up to the last item that is there (prefill split over a join, Teola's third pass).
"""

from __future__ import annotations

from weftline.contract.transforms import gives_items
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, ItemFlow, Primitive, Read, Specs
from weftline_server.passes.flows import has_reads
from weftline_server.passes.plan import MOST_EDGES, Changed, Findings, Plan, readers_of


def joins(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Rewrite the prompts that can take a list item by item."""
    rewritten: dict[str, Primitive] = {}
    for id in readers_of(changed, plan):
        primitive = graph.primitives[id]
        if not has_reads(primitive) or len(primitive.reads) > MOST_EDGES:
            continue
        reads = tuple([_widened(graph, primitive, read) for read in primitive.reads])
        if reads != primitive.reads:
            rewritten[id] = primitive.reading(reads)
    return Findings(rewritten=rewritten)


def _widened(graph: Graph, reader: Primitive, read: Read) -> Read:
    producer = graph.producer.get(read.variable)
    if producer is None or read.flow is not Flow.WHOLE or reader.body is None:
        return read
    items = graph.primitives[producer].items
    joined = None if items is None else reader.body.joins(read.variable)
    if items is None or joined is None or not _tells(items, joined):
        return read
    return Read(read.variable, Flow.ITEMS)


def _tells(items: ItemFlow, joined: Specs) -> bool:
    """Whether the first items of the list are known before the last: results that are in the list's
    order, or those of a text. JSON without a transform that joins is rarely a list, and would be
    read again for each of its commas.
    """
    if items.ordered:
        return items.streams and len(joined) <= 1
    return bool(joined) and gives_items((*items.says, *joined[:-1]))
