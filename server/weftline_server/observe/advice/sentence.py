"""What to do about a finding, in one sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from weftline_server.observe.advice.difference import Cause
from weftline_server.observe.advice.program import Finding, Program
from weftline_server.observe.advice.prompt import Place

SYSTEM = ("system", "developer")


def sentence(program: Program, found: Finding) -> str:
    """Where the prompts part, how often, what it costs, and what to change."""
    share = round(100 * min(1.0, found.times / max(1, program.calls)))
    each = round(found.lost / found.times)
    cost = f"{each:,} tokens behind it are computed anew in {share} % of {program.calls:,} calls"
    subject, remedy = _said(found)
    return f"{subject}, {cost}: {remedy}"


def _said(found: Finding) -> tuple[str, str]:
    """What differs, and what to do about it."""
    match found.cause:
        case Cause.TOOLS_ORDER:
            return "tools: order changes", "send the tools in one order"
        case Cause.TOOLS_SET:
            return (
                f"tools: {found.tool!r} is in some lists only",
                "send all tools each time, and limit them with tool_choice",
            )
        case Cause.TOOLS_TEXT:
            return (
                f"tools: the description of {found.tool!r} changes",
                "keep the tool's description and schema constant",
            )
    place = found.places[0]
    match found.cause:
        case Cause.VARIABLE:
            return _in_message(place, _names(found.places)), f"move it {_target(found)}"
        case Cause.TEXT:
            inside = f"{_text(place)} changes from character {found.offset:,} on"
            return inside, "put what changes at the end of the prompt"
        case Cause.REWRITTEN:
            remedy = "leave earlier messages as they were, and append a new one"
            return f"{_message(place)} was rewritten", remedy
        case Cause.DROPPED:
            remedy = "drop many messages at once and seldom, or replace them by a summary"
            return f"{_before(place)} was dropped", remedy
        case Cause.INSERTED:
            return f"a message was inserted before {_message(place)}", "append it at the end"
        case Cause.MOVED:
            return f"{_message(place)}: its place changes", "keep the messages in one order"
    raise AssertionError(f"no sentence for {found.cause}")


def _names(places: Sequence[Place]) -> str:
    names = list(dict.fromkeys(f"`{place.name}`" for place in places if place.name))
    if len(names) == 1:
        return f"variable {names[0]}"
    return f"variables {', '.join(names[:-1])} and {names[-1]}"


def _in_message(place: Place, names: str) -> str:
    if place.role is None:
        return names
    role = "system" if place.role in SYSTEM else place.role
    return f"{role} message, {names}"


def _text(place: Place) -> str:
    """The text that changes at one place."""
    return _in_message(place, f"variable `{place.name}`") if place.name else _message(place)


def _message(place: Place) -> str:
    if place.role in SYSTEM and not place.message:
        return "system message"
    if place.message is None:
        return "the prompt"
    return f"history: message {place.message + 1}"


def _before(place: Place) -> str:
    """The message that stood where another one stands now."""
    return f"history: message {(place.message or 0) + 1}"


def _target(found: Finding) -> str:
    """Where the text that differs costs nothing."""
    target, place = found.target, found.places[-1]
    if target is None or (found.is_end and target.name is None):
        return "to the end of the prompt"
    if target.name is not None:
        return f"after `{target.name}`"
    if target.message == place.message:
        return "after the text that follows it"
    return f"after message {(target.message or 0) + 1}"
