"""Flows: which edges carry a value while it is generated, and which carry it whole.

An edge streams where the producer's transforms pass a stream and the consumer can use one (Teola
section 4.2 clones nodes for this; here the edge says it).
"""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, Primitive, Read
from weftline_server.passes.plan import MOST_EDGES, Changed, Findings, Plan, readers_of


def flows(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Rewrite the readers whose edges can stream; an edge that streams stays so."""
    rewritten: dict[str, Primitive] = {}
    for id in readers_of(changed, plan):
        primitive = graph.primitives[id]
        if not has_reads(primitive) or len(primitive.reads) > MOST_EDGES:
            continue
        reads = tuple([_widened(graph, primitive, read) for read in primitive.reads])
        if reads != primitive.reads:
            rewritten[id] = primitive.reading(reads)
    return Findings(rewritten=rewritten)


def has_reads(primitive: Primitive) -> bool:
    """Whether the primitive is a prompt with inputs."""
    return primitive.body is not None and bool(primitive.reads)


def _widened(graph: Graph, reader: Primitive, read: Read) -> Read:
    producer = graph.producer.get(read.variable)
    if producer is None or read.flow is not Flow.WHOLE or reader.body is None:
        return read
    body = graph.primitives[producer].body
    if body is None or not body.streams_out(read.variable):
        return read
    return Read(read.variable, Flow.STREAM) if reader.body.streams_in(read.variable) else read
