"""Families that write all calls of an answer as one list between marks, in JSON or in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.tools import ToolCall
from weftline_server.prompt.python_calls import Calls, calls_in_python, written_in_python
from weftline_server.prompt.rewriter import CALL_END, THINK, THOUGHT, Rewriter, call_of, cut

MAX_LIST = 65_536  # characters; a longer list stays text


@dataclass(frozen=True, slots=True)
class ListStyle:
    """The marks around the list, what reads it, and what other marks of the answer become.

    `read` raises ValueError if a text is no list of calls.
    """

    opens: str
    closes: str
    read: Callable[[str], Calls]
    becomes: Mapping[str, str] = field(default_factory=dict)


class ListRewriter(Rewriter):
    """Takes an answer's text piece by piece. The calls are given when their list is complete. One
    that cannot be read stays text."""

    def __init__(self, style: ListStyle) -> None:
        super().__init__()
        self._style = style
        self._in_list = False

    def _advance(self, last: bool) -> Iterator[str]:
        while self._held:
            before = self._in_list, len(self._held)
            yield self._inside(last) if self._in_list else self._outside(last)
            if (self._in_list, len(self._held)) == before:
                return

    def _outside(self, last: bool) -> str:
        style = self._style
        text, mark, self._held = cut(self._held, (style.opens, *style.becomes), last)
        self._in_list = mark == style.opens
        return text + style.becomes.get(mark, "")

    def _inside(self, last: bool) -> str:
        text, mark, rest = self._held.partition(self._style.closes)
        if not mark and not last and len(text) <= MAX_LIST:
            return ""
        self._held, self._in_list = rest, False
        return self._calls(text) if mark else self._style.opens + text

    def _calls(self, text: str) -> str:
        try:
            calls = self._style.read(text) if len(text) <= MAX_LIST else ()
            made = [call_of(name) + json.dumps(some, allow_nan=False) for name, some in calls]
        except (ValueError, RecursionError):
            made = []
        if not made:
            return self._style.opens + text + self._style.closes
        return "\n".join(one + CALL_END for one in made)


def calls_in_json(text: str) -> Calls:
    """A list of objects, or objects one after the other, each with a name and arguments.

    Raises ValueError if the text is something else.
    """
    decoder = json.JSONDecoder()
    found: list[Any] = []
    rest = text.lstrip()
    while rest:
        value, at = decoder.raw_decode(rest)
        found += value if isinstance(value, list) else [value]
        rest = rest[at:].lstrip(" \t\r\n,;")
    return [_call_in(value) for value in found]


def _call_in(value: Any) -> tuple[str, Mapping[str, Any]]:
    match value:
        case {"name": str(name), "arguments": dict(some)}:
            return name, some
        case {"name": str(name), "arguments": str(text)}:
            return _call_in({"name": name, "arguments": json.loads(text)})
        case {"tool_name": str(name), "parameters": dict(some)}:
            return name, some
    raise ValueError("an entry is no call")


def calls_by_name(text: str) -> Calls:
    """A list of objects, each with a name as its only key, and the arguments as the value.

    Raises ValueError if the text is something else.
    """
    entries = json.loads(text)
    if not isinstance(entries, list):
        raise ValueError("this is no list")
    return [_named_call_in(one) for one in entries]


def _named_call_in(value: Any) -> tuple[str, Mapping[str, Any]]:
    match value:
        case {**named} if len(named) == 1:
            [(name, some)] = named.items()
            return _call_in({"name": name, "arguments": some})
    raise ValueError("an entry is no call")


def calls_of_lfm2(text: str) -> Calls:
    """Calls in Python, or in JSON where the system message asks for it.

    Raises ValueError if the text is neither.
    """
    return calls_in_json(text) if text.lstrip("[ \n").startswith("{") else calls_in_python(text)


JSON_IN_TAGS = ListStyle("<tool_calls>", "</tool_calls>", calls_in_json)
NEMOTRON = ListStyle("<TOOLCALL>", "</TOOLCALL>", calls_in_json)
LFM2 = ListStyle("<|tool_call_start|>", "<|tool_call_end|>", calls_of_lfm2)


def write_lfm2(calls: Sequence[ToolCall]) -> str:
    """Write calls as LFM2 does: its template writes none."""
    try:
        made = [(one.function.name, dict(json.loads(one.function.arguments))) for one in calls]
        text = written_in_python(made)
    except (ValueError, TypeError, RecursionError):  # a model wrote no JSON: it stays as it is
        text = f"[{', '.join(f'{c.function.name}({c.function.arguments})' for c in calls)}]"
    return LFM2.opens + text + LFM2.closes


APERTUS = ListStyle(
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    calls_by_name,
    {"<|inner_prefix|>": THINK, "<|inner_suffix|>": THOUGHT},
)
COMMAND = ListStyle(
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    calls_in_json,
    {
        "<|START_THINKING|>": THINK,
        "<|END_THINKING|>": THOUGHT,
        "<|START_RESPONSE|>": "",
        "<|END_RESPONSE|>": "",
    },
)
