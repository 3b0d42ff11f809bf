"""Families whose calls are tags, as tables of what each tag becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weftline_server.prompt.rewriter import Rewriter

MAX_TAG = 512  # characters; text that is no tag by then is not one


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag that begins with `start`, and what it becomes. Then the tags of place `then` count."""

    start: str
    pattern: re.Pattern[str]
    becomes: str
    then: int


def _tag(start: str, becomes: str, then: int = 0, rest: str = "") -> Tag:
    return Tag(start, re.compile(re.escape(start) + rest), becomes, then)


def _first_characters(tags: Sequence[Tag]) -> re.Pattern[str]:
    return re.compile("[" + re.escape("".join({tag.start[0] for tag in tags})) + "]")


# Place 0 is outside of calls. So a text about such tags stays as it is.
Places = Sequence[Sequence[Tag]]

SEED: Places = (
    (
        _tag("<seed:think>", "<think>"),
        _tag("</seed:think>", "</think>"),
        _tag("<seed:tool_call>", "<tool_call>"),
        _tag("</seed:tool_call>", "</tool_call>"),
    ),
)


def _invokes(opens: Sequence[str], closes: Sequence[str], own: str) -> Places:
    """Calls as `invoke` and `parameter` with names. Each becomes a call of Qwen3-Coder's."""
    return (
        tuple(_tag(one, "", 1) for one in opens),
        (
            *(_tag(one, "", 0) for one in closes),
            _tag(f"<{own}invoke", r"<tool_call>\n<function=\1>", 1, r' name="([^"<>\n]{1,128})">'),
            _tag(f"</{own}invoke>", r"</function>\n</tool_call>", 1),
            _tag(
                f"<{own}parameter",
                r"<parameter=\1>\n",
                2,
                r' name="([^"<>\n]{1,256})"(?: string="(?:true|false)")?>',
            ),
        ),
        (_tag(f"</{own}parameter>", r"\n</parameter>", 1),),
    )


MINIMAX = _invokes(("<minimax:tool_call>",), ("</minimax:tool_call>",), "")
_DSML = "｜DSML｜"
DEEPSEEK = _invokes(
    (f"<{_DSML}function_calls>", f"<{_DSML}tool_calls>"),
    (f"</{_DSML}function_calls>", f"</{_DSML}tool_calls>"),
    _DSML,
)


def _call_after(begin: str, rest: str, then: int) -> Tag:
    """The beginning of a call whose arguments are JSON, and follow."""
    return _tag(begin, r'<tool_call>\n{"name": "\1", "arguments": ', then, rest)


_JSON_CALL_END = r"}\n</tool_call>"
KIMI: Places = (
    (
        _tag("<|tool_calls_section_begin|>", ""),
        _tag("<|tool_calls_section_end|>", ""),
        _call_after(
            "<|tool_call_begin|>",
            r"\s{0,8}(?:functions\.)?([\w.-]{1,128}?)(?::\d{1,8})?\s{0,8}"
            r"<\|tool_call_argument_begin\|>",
            then=1,
        ),
    ),
    (_tag("<|tool_call_end|>", _JSON_CALL_END, 0),),
)
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"
# V3 and R1 write a type, a name and a fenced block; V3.1 writes a name and the arguments.
DEEPSEEK_JSON: Places = (
    (
        _tag("<｜tool▁calls▁begin｜>", ""),
        _tag("<｜tool▁calls▁end｜>", ""),
        _call_after(
            _DEEPSEEK_CALL,
            r"function<｜tool▁sep｜>\s{0,8}([\w.-]{1,128})\s{1,8}```json\s{0,8}(?=\{)",
            then=2,
        ),
        _call_after(_DEEPSEEK_CALL, r"\s{0,8}([\w.-]{1,128})<｜tool▁sep｜>\s{0,8}(?=\{)", then=1),
    ),
    (_tag("<｜tool▁call▁end｜>", _JSON_CALL_END, 0),),
    (_tag("\n```<｜tool▁call▁end｜>", _JSON_CALL_END, 0),),
)
MINICPM: Places = (
    (_tag("<function", r"<tool_call>\n<function=\1>\n", 1, r' name="([^"<>\n]{1,128})">'),),
    (
        _tag("<param", r"<parameter=\1>\n", 2, r' name="([^"<>\n]{1,256})">'),
        _tag("</function>", r"</function>\n</tool_call>", 0),
    ),
    (_tag("</param>", r"\n</parameter>\n", 1), _tag("<![CDATA[", "", 3)),
    (_tag("]]></param>", r"\n</parameter>\n", 1),),
)


class TagRewriter(Rewriter):
    """Takes an answer's text piece by piece, and gives it with other tags."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._begins = [_first_characters(tags) for tags in places]
        self._at = 0

    def _advance(self, last: bool) -> Iterator[str]:
        while self._held:
            begins = self._begins[self._at].search(self._held)
            yield self._held[: begins.start()] if begins else self._held
            self._held = self._held[begins.start() :] if begins else ""
            if not begins:
                return
            if found := self._found():
                tag, match = found
                yield match.expand(tag.becomes)
                self._held, self._at = self._held[match.end() :], tag.then
            elif not last and self._may_begin():
                return
            else:
                yield self._held[0]
                self._held = self._held[1:]

    def _found(self) -> tuple[Tag, re.Match[str]] | None:
        for tag in self._places[self._at]:
            if match := tag.pattern.match(self._held):
                return tag, match
        return None

    def _may_begin(self) -> bool:
        held = self._held
        return len(held) <= MAX_TAG and any(
            tag.start.startswith(held) or held.startswith(tag.start)
            for tag in self._places[self._at]
        )
