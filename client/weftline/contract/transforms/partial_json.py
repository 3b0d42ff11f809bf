"""JSON as models write it: in code fences, cut off in the middle, with raw newlines in strings.

For every text the result is the same as that of langchain_core.utils.json, but takes time linear in
the text's length. LangChain drops characters from the end, one by one, until the rest is JSON when
its brackets are closed. That takes minutes for a megabyte. Here the position of the JSON error says
how many characters to drop at once.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from json import JSONDecodeError
from typing import Any

_FENCE = re.compile(r"```(?:json)?(.*)", re.DOTALL)
_STRIPPED = " \n\r\t`"
_SPACE = " \n\r\t"

# Agents write their answer under this key. Its text may have raw newlines and tabs.
_ACTION_INPUT = re.compile(r'("action_input":\s*")(.*?)"', re.DOTALL)
_CONTROL = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})

_CLOSER = {"{": "}", "[": "]"}


def parse_json_text(text: str) -> Any:
    """The JSON value in `text`, bare or in a code fence. Raises JSONDecodeError if there is none.

    The result is also None for a text whose brackets close in the wrong order.
    """
    try:
        return _parse_bare(text)
    except JSONDecodeError:
        fence = _FENCE.search(text)
        if fence is None:
            raise
    return _parse_bare(fence.group(1))


_DECODER = json.JSONDecoder(strict=False)


def closed_values(text: str) -> list[Any]:
    """The complete values of a JSON list that may be cut off, bare or in a code fence.

    A number, true, false and null are complete where a comma or a bracket follows.
    """
    fence = _FENCE.search(text)
    inside = (text if fence is None else fence.group(1)).lstrip(_STRIPPED)
    found: list[Any] = []
    at = 1
    while inside[:1] == "[":
        at += len(inside[at:]) - len(inside[at:].lstrip(_SPACE))
        try:
            value, at = _DECODER.raw_decode(inside, at)
        except (ValueError, RecursionError):
            break
        after = inside[at:].lstrip(_SPACE)[:1]
        if not isinstance(value, (str, list, dict)) and after not in (",", "]"):
            break
        found.append(value)
        at = inside.find(",", at) + 1
        if after != ",":
            break
    return found


def _parse_bare(text: str) -> Any:
    escaped = _ACTION_INPUT.sub(
        lambda match: f'{match[1]}{match[2].translate(_CONTROL)}"', text.strip(_STRIPPED)
    )
    return parse_partial_json(escaped)


def parse_partial_json(text: str) -> Any:
    """The value of `text`, or of its longest prefix that is JSON once its brackets are closed."""
    try:
        return json.loads(text, strict=False)
    except JSONDecodeError as error:
        whole = error
    scan = _scan(text)
    if scan is None:
        return None
    end = len(scan.ends) - 1
    while end > 0:
        if scan.opened[end] != scan.opened[-1]:  # the closers would not fit this prefix
            end -= 1
            continue
        prefix = scan.text[: scan.ends[end]]
        try:
            return json.loads(prefix + scan.closers, strict=False)
        except JSONDecodeError as error:
            # No JSON has this character at error.pos, whatever follows. If the position lies in the
            # added closers, the prefix is correct but incomplete. Trailing space is ignored.
            at = error.pos if error.pos < len(prefix) else len(prefix.rstrip(_SPACE)) - 1
            end = bisect_right(scan.ends, at) - 1
    raise whole


@dataclass(frozen=True, slots=True)
class _Scan:
    """A text with repaired strings. ends[i] and opened[i] describe its first i characters.

    A repaired character counts once, even if it becomes two. Two prefixes with the same number in
    `opened` have the same open brackets. None marks prefixes that end inside a string.
    """

    text: str
    ends: list[int]
    opened: list[int | None]
    closers: str


class _Stack:
    """The open brackets. Equal stacks have equal numbers, and the empty stack has 0."""

    def __init__(self) -> None:
        self.top = 0
        self._stacks: list[tuple[int, str]] = [(0, "")]  # number of the stack below, top closer
        self._numbers: dict[tuple[int, str], int] = {}

    def read(self, char: str) -> bool:
        """Follow `char`. Returns False if it closes a bracket that is not open."""
        if char in _CLOSER:
            stack = (self.top, _CLOSER[char])
            self.top = self._numbers.setdefault(stack, len(self._stacks))
            if self.top == len(self._stacks):
                self._stacks.append(stack)
        elif char in "}]":
            self.top, closer = self._stacks[self.top]
            return char == closer
        return True

    def closers(self) -> str:
        """The brackets that close the open ones, innermost first."""
        closers, number = [], self.top
        while number:
            number, closer = self._stacks[number]
            closers.append(closer)
        return "".join(closers)


def _scan(text: str) -> _Scan | None:
    """`text` with closed strings and escaped newlines, or None if brackets cross."""
    pieces: list[str] = []
    opened: list[int | None] = [0]
    stack = _Stack()
    in_string = escaped = False
    for char in text:
        pieces.append("\\n" if in_string and char == "\n" and not escaped else char)
        if char == '"' and not escaped:
            in_string = not in_string
        elif in_string:
            escaped = char == "\\" and not escaped
        elif not stack.read(char):
            return None
        opened.append(None if in_string else stack.top)
    if in_string:
        if escaped:  # a string that ends in half an escape cannot be closed
            pieces.pop()
            opened.pop()
        pieces.append('"')
        opened.append(stack.top)
    ends = [0, *accumulate(map(len, pieces))]
    return _Scan("".join(pieces), ends, opened, stack.closers())
