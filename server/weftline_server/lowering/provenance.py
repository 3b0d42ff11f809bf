"""Checks a client's claims about the source of its text."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from weftline.protocol import Call, Message, Prompt, Segment
from weftline_server.prompt.render import value_text
from weftline_server.session.session import Session
from weftline_server.session.variable import VariableState


def came_from(session: Session, variable: str, text: str) -> bool:
    """Whether `text` lies inside the value that `variable` has."""
    found = session.variables.get(variable)
    if found is None or found.state is not VariableState.READY:
        return False
    return text in found.text or text in value_text(found.value)


def verified(session: Session, call: Call) -> Call:
    """`call` without its wrong claims of provenance: such text is treated as constant."""

    def checked(segment: Segment) -> Segment:
        var, text = segment.from_var, segment.text
        if var is None or (text is not None and came_from(session, var, text)):
            return segment
        return replace(segment, from_var=None)

    def checked_item(item: Message | Segment) -> Message | Segment:
        if isinstance(item, Segment):
            return checked(item)
        return replace(item, content=tuple(map(checked, item.content)))

    if not isinstance(call.prompt, str) and any(s.from_var for s in call.segments()):
        # Each item keeps its type, so the prompt does.
        call = replace(call, prompt=cast(Prompt, tuple(map(checked_item, call.prompt))))
    if any(holder.from_var for holder in call.placeholders):
        holders = (
            holder
            if holder.from_var is None
            or came_from(session, holder.from_var, value_text(holder.value))
            else replace(holder, from_var=None)
            for holder in call.placeholders
        )
        call = replace(call, placeholders=tuple(holders))
    return call
