"""Prefix hashes at the ends of a prompt's segments (Parrot section 5.3): equal text, equal hash."""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import Changed, Findings, Plan


def prefixes(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Find the prefix hashes of each primitive's prompt, in order. The hashes never change."""
    found: dict[str, tuple[str, ...]] = {}
    for id in changed:
        body = graph.primitives[id].body
        if id not in plan.prefixes and body is not None:
            found[id] = body.boundaries()
    return Findings(prefixes=found)
