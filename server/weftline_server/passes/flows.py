"""Flows: which edges carry a value while it is generated, and which carry it whole.

An edge streams where the producer's transforms pass a stream and the consumer can use one (Teola
section 4.2 clones nodes for this; here the edge says it).
"""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, Primitive, PrimitiveBody
from weftline_server.passes.plan import Changed, Findings, Plan, widened


def flows(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Rewrite the readers whose edges can stream; an edge that streams stays so."""
    return widened(graph, plan, changed, _streamed)


def _streamed(producer: Primitive, reader: PrimitiveBody, variable: str) -> Flow | None:
    if producer.body is None or not producer.body.streams_out(variable):
        return None
    return Flow.STREAM if reader.streams_in(variable) else None
