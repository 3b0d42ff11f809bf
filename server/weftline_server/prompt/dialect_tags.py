"""Families whose calls are tags, as tables of what each tag becomes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
KIMI: Places = (
    (
        _tag("<|tool_calls_section_begin|>", ""),
        _tag("<|tool_calls_section_end|>", ""),
        _tag(
            "<|tool_call_begin|>",
            r'<tool_call>\n{"name": "\1", "arguments": ',
            1,
            r"\s{0,8}(?:functions\.)?([\w.-]{1,128}?)(?::\d{1,8})?\s{0,8}"
            r"<\|tool_call_argument_begin\|>",
        ),
    ),
    (_tag("<|tool_call_end|>", r"}\n</tool_call>", 0),),
)


class TagRewriter:
    """Takes an answer's text piece by piece, and gives it with other tags."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._at = 0
        self._held = ""

    def feed(self, text: str) -> str:
        """More of the text, as far as no tag has begun."""
        self._held += text
        return self._advance(last=False)

    def end(self) -> str:
        """The rest, in which a tag is not complete."""
        return self._advance(last=True)

    def _advance(self, last: bool) -> str:
        made = []
        while self._held:
            text, bracket, rest = self._held.partition("<")
            made.append(text)
            self._held = bracket + rest
            if not bracket:
                break
            if found := self._found():
                tag, match = found
                made.append(match.expand(tag.becomes))
                self._held, self._at = self._held[match.end() :], tag.then
            elif not last and self._may_begin():
                break
            else:
                made.append("<")
                self._held = rest
        return "".join(made)

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
