"""What to do about a finding, in one sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from weftline_server.observe.advice.difference import SYSTEM, Cause
from weftline_server.observe.advice.program import Finding, Program
from weftline_server.observe.advice.prompt import Place


def sentence(program: Program, finding: Finding) -> str:
    """Where the prompts part, how often, what it costs, and what to change."""
    share = round(100 * min(1.0, finding.times / max(1, program.calls)))
    each = round(finding.lost / finding.times)
    them = "it" if len(_named(finding.places)) < 2 else "them"
    cost = f"{each:,} tokens behind {them} are computed anew"
    subject, remedy = _said(finding)
    return f"{subject}, {cost} in {share} % of {program.calls:,} calls: {remedy}"


def _of_tools(cause: Cause, tool: str | None) -> tuple[str, str]:
    """What differs in the lists of tools, and what to do about it."""
    if cause is Cause.TOOLS_ORDER:
        return "tools: order changes", "send the tools in one order"
    if cause is Cause.TOOLS_SET:
        remedy = "send all tools each time, and limit them with tool_choice"
        return f"tools: `{tool}` is in some lists only", remedy
    remedy = "keep the tool's description and schema constant"
    return f"tools: the description of `{tool}` changes", remedy


def _said(finding: Finding) -> tuple[str, str]:
    """What differs, and what to do about it."""
    if not finding.places:
        return _of_tools(finding.difference.cause, finding.difference.tool)
    place = finding.places[0]
    match finding.difference.cause:
        case Cause.VARIABLE:
            them = "it" if len(_named(finding.places)) == 1 else "them"
            return _in_message(place, _names(finding.places)), f"move {them} {_target(finding)}"
        case Cause.TEXT:
            return _changes(finding), "put what changes at the end of the prompt"
        case Cause.REWRITTEN:
            remedy = "leave earlier messages as they were, and append a new one"
            if finding.roams:
                return f"history: earlier messages are rewritten, such as {_message(place)}", remedy
            return f"history: {_message(place)} was rewritten", remedy
        case Cause.DROPPED:
            remedy = "drop many messages at once and seldom, or replace them by a summary"
            return f"history: {_message(place)} was dropped", remedy
        case Cause.INSERTED:
            return f"history: a message was inserted before {_message(place)}", "append it"
        case Cause.MOVED if _is_system(place):
            return "system message: its place changes", "keep it at one place"
        case Cause.MOVED:
            return "history: the order of messages changes", "keep the messages in one order"
    raise AssertionError(f"no sentence for {finding.difference.cause}")


def _is_system(place: Place) -> bool:
    return place.role in SYSTEM


def _named(places: Sequence[Place]) -> list[str]:
    return list(dict.fromkeys(f"`{place.name}`" for place in places if place.name))


def _names(places: Sequence[Place]) -> str:
    *others, last = _named(places)
    return f"variables {', '.join(others)} and {last}" if others else f"variable {last}"


def _in_message(place: Place, names: str) -> str:
    if place.role is None:
        return names
    return f"{_role(place)} message, {names}"


def _role(place: Place) -> str:
    return "system" if _is_system(place) else place.role or ""


def _changes(finding: Finding) -> str:
    """The text that differs in one part of it."""
    place = finding.places[0]
    if place.name is not None:
        text = _in_message(place, f"variable `{place.name}`")
    else:
        text = "system message" if _is_system(place) else _message(place)
    return f"{text} changes from character {finding.difference.offset:,} on"


def _message(place: Place) -> str:
    """The message by its number; people count from 1."""
    return "the prompt" if place.message is None else f"message {place.message + 1}"


def _target(finding: Finding) -> str:
    """Where the text that differs costs nothing."""
    target, follower = finding.target, finding.follower
    if target is None or (follower is None and target.name is None):
        return "to the end of the prompt"
    if target.name is not None:
        return f"after `{target.name}`"
    if follower is not None and follower.message != target.message:
        return f"to the end of the {_role(target)} message"
    return "after the text that follows it"
