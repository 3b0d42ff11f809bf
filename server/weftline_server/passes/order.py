"""Order: drops the edges between steps whose order changes nothing (Teola's first pass).

Two steps keep their order where both use one store and one of them writes to it, and where one has
effects that may happen once only. All others may run at once.
"""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.graph.idle import is_idle
from weftline_server.graph.primitive import Flow, Primitive
from weftline_server.passes.plan import Changed, Findings, Plan, readers_of


def order(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Rewrite the readers without their idle `order` edges; a variable of the client stays one."""
    rewritten: dict[str, Primitive] = {}
    for id in readers_of(changed, plan):
        primitive = graph.primitives[id]
        if not has_order(primitive):
            continue
        reads = tuple([read for read in primitive.reads if not is_idle(graph, primitive, read)])
        if len(reads) < len(primitive.reads):
            rewritten[id] = primitive.reading(reads)
    return Findings(rewritten=rewritten)


def has_order(primitive: Primitive) -> bool:
    """Whether the primitive has an `order` edge, on which it waits for a writer and reads no
    value."""
    return Flow.ORDER in [read.flow for read in primitive.reads]
