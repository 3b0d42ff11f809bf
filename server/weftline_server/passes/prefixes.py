"""Prefix hashes at every segment boundary (Parrot section 5.3): equal text, equal hash.

Constants hash by their text and inputs by variable or by value, so two calls that start alike
have equal hashes as far as they agree, before any value is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from weftline.protocol import Message, Segment
from weftline_server.graph.graph import Graph, Node
from weftline_server.passes.plan import Calls, Plan
from weftline_server.prompt.render import value_text


def prefixes(graph: Graph, plan: Plan, calls: Calls) -> Mapping[str, tuple[str, ...]]:
    """For each call the hashes at its boundaries, in order; they never change."""
    fresh = (call for call in calls if call not in plan.prefixes)
    return {call: boundaries(graph.nodes[call]) for call in fresh}


def boundaries(node: Node) -> tuple[str, ...]:
    """16 hex digits for each segment: the hash of the prompt up to its end."""
    call = node.call
    assert not isinstance(call.prompt, str), "template text is parsed when it arrives"
    digest = hashlib.sha256((call.model or "default").encode())
    if call.offered_tools:  # templates render them at the beginning
        digest.update(repr(call.offered_tools).encode())
    found = []
    for item in call.prompt:
        if isinstance(item, Message):
            digest.update(f"\x00role:{item.role}\x00".encode())
            if item.tool_calls:
                digest.update(repr(item.tool_calls).encode())
        for segment in item.content if isinstance(item, Message) else (item,):
            digest.update(_identity(node, segment).encode())
            found.append(digest.hexdigest()[:16])
    return tuple(found)


def _identity(node: Node, segment: Segment) -> str:
    if segment.text is not None:
        return segment.text
    name = segment.input or segment.output
    holder = next(p for p in (*node.inputs, *node.outputs) if p.name == name)
    if holder.semantic_var_id is not None:
        return f"\x00variable:{holder.semantic_var_id}:{holder.transforms}\x00"
    return value_text(holder.value)
