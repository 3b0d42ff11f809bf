"""Joins: which prompts are filled with a list's first items before the list is complete.

The text of a list that a prompt joins begins with its first items, in their order. So the prompt is
known up to the last item that is there (prefill split over a join, Teola's third pass).
"""

from __future__ import annotations

from weftline.contract.transforms import gives_items
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, ItemFlow, Primitive, PrimitiveBody, Specs
from weftline_server.passes.plan import Changed, Findings, Plan, widened


def joins(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Rewrite the prompts that can take a list item by item."""
    return widened(graph, plan, changed, _item_by_item)


def _item_by_item(producer: Primitive, reader: PrimitiveBody, variable: str) -> Flow | None:
    items = producer.items
    joined = None if items is None else reader.joins(variable)
    if items is None or joined is None or not _tells(items, joined):
        return None
    return Flow.ITEMS


def _tells(items: ItemFlow, joined: Specs) -> bool:
    """Whether the first items of the list are known before the last: results that are in the list's
    order, or those of a text. JSON without a transform that joins is rarely a list, and would be
    read again for each of its commas.
    """
    if items.ordered:
        return items.streams and len(joined) <= 1
    return bool(joined) and gives_items((*items.says, *joined[:-1]))
