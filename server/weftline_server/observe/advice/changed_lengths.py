"""The lengths of a program's calls as they were recorded, and as they would be after the change.

A segment is a number for its text, and its tokens. No text of a prompt is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weftline_server.observe.advice.difference import Cause
from weftline_server.observe.advice.program import Finding, Program, RecordedCall

Segments = tuple[tuple[int, int], ...]

# A history that is never changed grows. Where it has this many times the tokens of the prompt that
# was sent, it begins anew with that prompt: that is "drop many messages at once".
MOST_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Length:
    """One call: the segments of its prompt in order, when it came, and its output's tokens."""

    at: float
    segments: Segments
    output: int


def lengths(program: Program, finding: Finding) -> tuple[list[Length], list[Length]]:
    """The recorded calls as they were, and with the finding's advice followed."""
    recorded = list(program.recorded)
    cause = finding.difference.cause
    if cause is Cause.TEXT:
        recorded = [_split(one, finding) for one in recorded]
    now = [_length(one, one.segments) for one in recorded]
    if not finding.places:
        return now, [_length(one, one.segments) for one in _same_tools(recorded, cause)]
    if cause in (Cause.VARIABLE, Cause.TEXT):
        return now, [_length(one, _moved(one.segments, finding)) for one in recorded]
    return now, _kept(recorded)


def lengths_view(program: Program, finding: Finding) -> dict[str, Any]:
    """The lengths as JSON: segments by small numbers, times from the first call on.

    Tokens were estimated in each call, so a text has those of the call that had it first.
    """
    now, then = lengths(program, finding)
    texts: dict[int, tuple[int, int]] = {}
    for one in (*now, *then):
        for text, tokens in one.segments:
            texts.setdefault(text, (len(texts), tokens))
    return {"now": [_view(one, now[0].at, texts) for one in now],
            "then": [_view(one, now[0].at, texts) for one in then]}  # fmt: skip


def _view(one: Length, begun: float, texts: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    return {
        "at_s": round(one.at - begun, 6),
        "segments": [list(texts[text]) for text, _ in one.segments],
        "output_tokens": one.output,
    }


def _length(one: RecordedCall, segments: Segments) -> Length:
    return Length(one.at, (*one.tools, *segments), one.output)


def _same_tools(recorded: Sequence[RecordedCall], cause: Cause) -> Iterator[RecordedCall]:
    """The calls with their tools in one order, with all tools, or with the first descriptions."""
    every = dict.fromkeys(tool for one in recorded for tool in one.tools)
    for one in recorded:
        if cause is Cause.TOOLS_ORDER:
            yield replace(one, tools=tuple(sorted(one.tools)))
        elif cause is Cause.TOOLS_SET:
            yield replace(one, tools=tuple(every))
        else:
            yield replace(one, tools=recorded[0].tools)


def _split(one: RecordedCall, finding: Finding) -> RecordedCall:
    """The call with the segment that changes in three: its two equal ends, and what changes."""
    found = finding.difference
    (index,) = found.at[:1]
    if index >= len(one.segments):
        return one
    text, tokens = one.segments[index]
    head = round(tokens * found.offset / found.size)
    tail = round(tokens * found.tail / found.size)
    changing = max(1, tokens - head - tail)
    parts = ((hash((index, "head")), head), (text, changing), (hash((index, "tail")), tail))
    return replace(one, segments=(*one.segments[:index], *parts, *one.segments[index + 1 :]))


def _moved(segments: Segments, finding: Finding) -> Segments:
    """The segments that differ, behind the last one with equal text."""
    found = finding.difference
    at, last = found.at, min(found.last, len(segments) - 1)
    if found.cause is Cause.TEXT:  # what changes is the second of three, see `_split`
        at, last = (found.at[0] + 1,), len(segments) - 1
    moved = [segments[index] for index in at if index < len(segments)]
    stay = [one for index, one in enumerate(segments[: last + 1]) if index not in at]
    return (*stay, *moved, *segments[last + 1 :])


def _kept(recorded: Sequence[RecordedCall]) -> list[Length]:
    """The lengths of prompts in which no earlier message changes: each is its predecessor, with the
    new text behind."""
    orders: dict[int, Segments] = {}
    for one in recorded:
        before = orders.get(one.follows or 0, ())
        known = {text for text, _ in before}
        order = (*before, *(item for item in one.segments if item[0] not in known))
        if _tokens(order) > MOST_GROWTH * _tokens(one.segments):
            order = one.segments
        orders[one.number] = order
    return [_length(one, orders[one.number]) for one in recorded]


def _tokens(segments: Segments) -> int:
    return sum(tokens for _, tokens in segments)
