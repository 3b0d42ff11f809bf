"""Where two prompts of one program part, and which equal text stands behind that place.

A KV cache is shared up to the first difference. Equal text behind the difference is computed anew.
That equal text would be shared if the difference stood behind the text. So the text is the cost of
the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress, count
from operator import ne

from weftline.contract.tools import Tool
from weftline_server.observe.advice.prompt import Place, PromptTexts

SYSTEM = ("system", "developer")  # the roles of messages that stay at the head of a prompt


class Cause(StrEnum):
    """What makes two prompts part."""

    VARIABLE = "variable"  # an input of the template has another value
    TEXT = "text"  # a text changes at one place, and goes on as before
    REWRITTEN = "rewritten"  # a message of the history has another text
    DROPPED = "dropped"  # messages of the history are gone
    INSERTED = "inserted"  # messages came into the history before others
    MOVED = "moved"  # the messages have another order
    TOOLS_ORDER = "tools_order"  # the same tools in another order
    TOOLS_SET = "tools_set"  # a tool came or went
    TOOLS_TEXT = "tools_text"  # a tool is described in another way

    @property
    def is_of_tools(self) -> bool:
        """Whether the lists of tools differ."""
        return self in (Cause.TOOLS_ORDER, Cause.TOOLS_SET, Cause.TOOLS_TEXT)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the second of two prompts parts from the first, and what it costs.

    `at` are the segments of the second prompt that differ; it is empty for tools. `lost` are the
    characters of equal text behind them, and `last` is the last segment with some of that text.
    `start` is the first segment that is not equal in both. It has `size` characters in the second
    prompt, of which the first `offset` and the last `tail` are equal in both. `tool` names the tool
    that changed.
    """

    cause: Cause
    start: int
    at: tuple[int, ...]
    lost: int
    last: int
    offset: int = 0
    tail: int = 0
    size: int = 0
    tool: str | None = None


Places = Callable[[], Sequence[Place]]


def parting(before: Sequence[object], after: Sequence[object]) -> int:
    """The number of leading texts, or tools, that are equal in both."""
    return next(compress(count(), map(ne, before, after)), min(len(before), len(after)))


def differences(
    before: PromptTexts, after: PromptTexts, places: Places, least: int
) -> Iterator[Difference]:
    """What is lost by each difference that costs at least `least` characters.

    The characters of the differences add up: none is counted twice. `places` gives the places of
    the second prompt, and is asked only where the prompts differ.
    """
    if before.tools != after.tools and (of_tools := _of_tools(before, after)).lost >= least:
        yield of_tools
        return
    start = parting(before.texts, after.texts)
    if start == min(len(before.texts), len(after.texts)):
        return  # one prompt goes on where the other ends
    where = places()
    named = where[start].name is not None
    if named and len(before.texts) == len(after.texts):
        found = _of_template(before.texts, after.texts, start, least)
    else:
        found = iter([_of_messages(before.texts, after.texts, start, where, least)])
    yield from (one for one in found if one.lost >= least)


def _of_tools(before: PromptTexts, after: PromptTexts) -> Difference:
    """The difference of two lists of tools. Most chat templates write tools before the messages;
    where one does not, `same_chars` and the cached tokens tell."""
    old = {tool.function.name: tool for tool in before.tools}
    new = {tool.function.name: tool for tool in after.tools}
    changed: str | None = None
    if old.keys() != new.keys():
        cause = Cause.TOOLS_SET
        changed = min(old.keys() ^ new.keys())
    elif old != new:
        cause = Cause.TOOLS_TEXT
        changed = next(name for name in new if old[name] != new[name])
    else:
        cause = Cause.TOOLS_ORDER
    same = parting(before.texts, after.texts)
    behind = after.tools[parting(before.tools, after.tools) :]
    kept = tool_chars([tool for tool in behind if old.get(tool.function.name) == tool])
    return Difference(
        cause, same, (), kept + sum(map(len, after.texts[:same])), same - 1, tool=changed
    )


def same_chars(before: PromptTexts, after: PromptTexts) -> int:
    """About the characters of the second prompt's tools and first texts that the first one has."""
    old = {tool.function.name: tool for tool in before.tools}
    kept = [tool for tool in after.tools if old.get(tool.function.name) == tool]
    same = parting(before.texts, after.texts)
    return tool_chars(kept) + sum(map(len, after.texts[:same]))


def tool_chars(tools: Sequence[Tool]) -> int:
    """About the characters of tools in a prompt."""
    return sum(len(repr(tool.to_template())) for tool in tools)


def _of_template(
    before: Sequence[str], after: Sequence[str], start: int, least: int
) -> Iterator[Difference]:
    """The differences of two prompts of one template, whose segments correspond one to one.

    Equal text is lost to the segments that differ before it, up to the equal text before these. So
    each name gets only what would be shared if it stood behind that text.
    """
    cause, lost, last = Cause.VARIABLE, 0, start
    at: list[int] = []
    equal = (0, 0)  # characters at both ends of the first segment of `at`

    def difference() -> Difference:
        return Difference(cause, at[0], tuple(at), lost, last, *equal, len(after[at[0]]))

    for index in range(start, len(after)):
        if before[index] == after[index]:
            lost += len(after[index])
            last = index
            continue
        head, tail = ends(before[index], after[index], least)
        if not at or lost >= least or tail >= least:
            if at:
                yield difference()
            at, lost, equal = [], tail, (head, tail)
            cause = Cause.TEXT if tail >= least else Cause.VARIABLE
        at.append(index)
        last = max(last, index)
    yield difference()


def _of_messages(
    before: Sequence[str],
    after: Sequence[str],
    start: int,
    places: Sequence[Place],
    least: int,
) -> Difference:
    """The difference of two prompts of a conversation, whose messages may have moved."""
    old, new = before[start], after[start]
    is_later, comes_later = new in before[start + 1 :], old in after[start + 1 :]
    head, tail = ends(old, new, least)
    match is_later, comes_later:
        case True, True:
            cause = Cause.MOVED
        case True, False:
            cause = Cause.DROPPED
        case False, True:
            cause = Cause.INSERTED
        case _ if tail >= least or (places[start].role in SYSTEM and not places[start].name):
            cause = Cause.TEXT
        case _:
            cause = Cause.VARIABLE if places[start].name else Cause.REWRITTEN
    known = set(before[start:])
    stop = len(after)
    if cause is Cause.INSERTED:  # what stands at the end of every prompt is not behind anything
        stop -= parting(before[start:][::-1], after[start:][::-1])
    again = [index for index in range(start, stop) if after[index] in known]
    lost = sum(len(after[index]) for index in again)
    if tail >= least and cause is Cause.TEXT:
        lost += tail
    at = start
    if cause is Cause.MOVED and places[moved := after.index(old, start)].role in SYSTEM:
        at = moved  # the one that is expected to stay where it is
    return Difference(cause, start, (at,), lost, max([start, *again]), head, tail, len(new))


def shared(before: PromptTexts, after: PromptTexts, least: int) -> int:
    """The characters of the second prompt that stand in the first one, too: texts that are equal,
    and both ends of the texts at the first difference."""
    start = parting(before.texts, after.texts)
    found = sum(map(len, after.texts[:start]))
    if start < min(len(before.texts), len(after.texts)):
        known = set(before.texts[start:])
        found += sum(len(text) for text in after.texts[start:] if text in known)
        if after.texts[start] not in known:
            found += sum(ends(before.texts[start], after.texts[start], least))
    return found


def ends(old: str, new: str, least: int) -> tuple[int, int]:
    """The characters at the beginning that two texts share, and those at the end.

    The end is searched only in texts that are longer than `least`.
    """
    most = min(len(old), len(new))
    head = _shared(most, lambda low, high: old[low:high] == new[low:high])
    if most - head < least:
        return head, 0
    back_old, back_new = old[: -most - 1 : -1], new[: -most - 1 : -1]
    return head, _shared(most - head, lambda low, high: back_old[low:high] == back_new[low:high])


def _shared(most: int, same: Callable[[int, int], bool]) -> int:
    """The largest number up to `most` such that `same` holds of the range from 0 to it.

    Each step halves the range that is left, so a text is compared about twice.
    """
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        if same(low, middle):
            low = middle
        else:
            most = middle - 1
    return low
