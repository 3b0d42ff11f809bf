"""The items of a list so far: as they were told, or read from the text that was generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.transforms import closed_items
from weftline_server.lowering.control.each import GatherBody
from weftline_server.session.session import ServerSession
from weftline_server.session.variable import VariableState


def known_items(
    session: ServerSession, variable: str, through: Sequence[Mapping[str, Any]] = ()
) -> list[Any]:
    """The first items of the value that the variable will have, after the transforms `through`."""
    found = session.variables[variable]
    producer = session.graph.producer.get(variable)
    if producer is None:
        return found.items
    above = session.graph.primitives[producer]
    if isinstance(above.body, GatherBody):
        return above.body.so_far(session.variables)
    specs = () if above.items is None else (*above.items.says, *through)
    if specs and found.state is VariableState.STREAMING:
        return closed_items(specs, found.text)
    return found.items
