"""Families that write thoughts, calls and answers as channels: gpt-oss (harmony) and Gemma 4.

A text in channels becomes a thinking block, the answer, and calls in the tags of Hermes. A block
stands at the beginning only, so thoughts behind the answer's beginning are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum, auto

from weftline_server.prompt.rewriter import CALL_END, THINK, THOUGHT, Rewriter, call_of, cut

_MOST_HEAD = 512  # characters; text that begins no message by then is an answer


class _In(Enum):
    HEAD = auto()  # before the text of a message
    SAID = auto()
    THOUGHT = auto()
    ASIDE = auto()  # thoughts that are left out
    CALL = auto()


class HarmonyRewriter(Rewriter):
    """Takes gpt-oss's text piece by piece: messages, each with a head that names its channel.

    <|channel|>analysis<|message|>THOUGHTS<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>ANSWER<|return|>

    Text without a head is an answer, such as one that a constraint has forced.
    """

    _HEADER = re.compile(
        r"\s{0,8}(?:<\|start\|>\s{0,8}assistant)?\s{0,8}(?:to=([\w.-]{1,140}))?\s{0,8}"
        r"(?:<\|channel\|>\s{0,8}(\w{1,32}))?\s{0,8}(?:to=([\w.-]{1,140}))?\s{0,8}"
        r"(?:<\|constrain\|>)?\s{0,8}\w{0,32}\s{0,8}<\|message\|>"
    )
    _STARTS = ("<|start|>", "<|channel|>", "<|message|>", "to=")
    _NEXT = ("<|start|>", "<|channel|>")  # they begin the next message, too
    _ENDS = ("<|end|>", "<|return|>", "<|call|>", *_NEXT)

    def __init__(self) -> None:
        super().__init__()
        self._in = _In.HEAD
        self._arguments: list[str] = []
        self._thinks = False  # the block is open
        self._began = False  # an answer or a call

    def end(self) -> str:
        """The rest. The mark behind a call ends the output, and engines may keep it."""
        made = super().end()
        if self._in is _In.CALL and _is_object("".join(self._arguments)):
            made += CALL_END
        return made

    def _advance(self, last: bool) -> Iterator[str]:
        while self._held:
            before = self._in, len(self._held)
            yield self._head(last) if self._in is _In.HEAD else self._body(last)
            if (self._in, len(self._held)) == before:
                return

    def _head(self, last: bool) -> str:
        if found := self._HEADER.match(self._held):
            self._held = self._held[found.end() :]
            return self._opened(found.group(1) or found.group(3), found.group(2))
        rest = self._held.lstrip()
        begins = any(rest.startswith(one) or one.startswith(rest) for one in self._STARTS)
        if last or not begins or len(rest) > _MOST_HEAD:
            first, self._held = self._held[:1], self._held[1:]  # or a mark would open it again
            return self._opened(None, None) + first
        return ""

    def _opened(self, to: str | None, channel: str | None) -> str:
        is_call = to is not None and to != "assistant"
        if channel == "analysis" and not is_call:
            if self._began:
                self._in = _In.ASIDE
                return ""
            begin = "\n\n" if self._thinks else THINK  # thoughts in a row are one block
            self._in, self._thinks = _In.THOUGHT, True
            return begin
        begin = THOUGHT if self._thinks else "\n\n" if self._began else ""
        self._in, self._thinks, self._began = _In.SAID, False, True
        if is_call:
            assert to is not None, "a call has a recipient"
            self._in = _In.CALL
            self._arguments.clear()
            begin += call_of(to.removeprefix("functions."))
        return begin

    def _body(self, last: bool) -> str:
        text, mark, rest = cut(self._held, self._ENDS, last)
        self._held = mark + rest if mark in self._NEXT else rest
        shown = "" if self._in is _In.ASIDE else text
        if self._in is _In.CALL:
            self._arguments.append(text)
            shown += CALL_END if mark else ""
        if mark:
            self._in = _In.HEAD
        return shown


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class GemmaRewriter(Rewriter):
    """Takes Gemma 4's text piece by piece.

    <|channel>thought
    THOUGHTS<channel|>ANSWER<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>
    """

    _CHANNEL, _CHANNEL_END = "<|channel>", "<channel|>"
    _CALL, _END = "<|tool_call>", "<tool_call|>"
    _HEADER = re.compile(r"<\|channel>\w{0,32}(?=\W)")
    _NAME = re.compile(r"<\|tool_call>\s{0,8}call:\s{0,8}([\w.-]{1,128})\s{0,8}(?=\{)")

    def __init__(self) -> None:
        super().__init__()
        self._in = _In.SAID
        self._arguments = GemmaArguments()
        self._began = False

    def _advance(self, last: bool) -> Iterator[str]:
        steps = {_In.SAID: self._said, _In.HEAD: self._head, _In.CALL: self._call}
        while self._held:
            before = self._in, len(self._held)
            yield steps.get(self._in, self._thought)(last)
            if (self._in, len(self._held)) == before:
                return

    def _said(self, last: bool) -> str:
        text, mark, rest = cut(self._held, (self._CHANNEL, self._CALL), last)
        self._held = mark + rest
        self._began = self._began or bool(text.strip())
        if mark:
            self._in = _In.HEAD
        return text

    def _head(self, last: bool) -> str:
        if found := self._HEADER.match(self._held):
            self._held = self._held[found.end() :]
            self._in = _In.ASIDE if self._began else _In.THOUGHT
            return "" if self._began else THINK
        if found := self._NAME.match(self._held):
            self._held, self._in, self._began = self._held[found.end() :], _In.CALL, True
            self._arguments = GemmaArguments()
            return call_of(found.group(1))
        if last or len(self._held) > _MOST_HEAD:
            text, self._held = self._held[:1], self._held[1:]
            self._in, self._began = _In.SAID, True
            return text
        return ""

    def _thought(self, last: bool) -> str:
        text, mark, self._held = cut(self._held, (self._CHANNEL_END,), last)
        if self._in is _In.ASIDE:
            text, made = "", ""
        else:
            made = THOUGHT if mark else ""
        if mark:
            self._in, self._began = _In.SAID, True
        return text + made

    def _call(self, last: bool) -> str:
        text, mark, self._held = cut(self._held, (self._END,), last)
        made = self._arguments.feed(text)
        if mark:
            self._in = _In.SAID
            made += self._arguments.end() + CALL_END
        return made


class GemmaArguments(Rewriter):
    """Turns Gemma 4's arguments into JSON piece by piece: keys are bare, and texts stand between
    marks."""

    _QUOTE = '<|"|>'
    _WORD = re.compile(r"[\w.+-]+")
    _AS_IN_JSON = re.compile(r"-?\d[\w.+-]*|true|false|null")

    def __init__(self) -> None:
        super().__init__()
        self._in_text = False

    def _advance(self, last: bool) -> Iterator[str]:
        while self._held:
            text, quote, rest = cut(self._held, (self._QUOTE,), last)
            if self._in_text:
                yield json.dumps(text, ensure_ascii=False)[1:-1]
            else:
                made, left = self._bare(text, last or bool(quote))
                yield made
                rest = left + rest
            self._held = rest
            if not quote:
                return
            self._in_text = not self._in_text
            yield '"'

    def _bare(self, text: str, whole: bool) -> tuple[str, str]:
        """What stands between texts, as JSON, and a word at its end that may go on."""
        made: list[str] = []
        at = 0
        for word in self._WORD.finditer(text):
            may_go_on = word.end() == len(text) and len(word.group()) <= _MOST_HEAD
            if may_go_on and not whole:
                return "".join(made) + text[at : word.start()], word.group()
            name = "null" if word.group() == "None" else word.group()
            json_name = name if self._AS_IN_JSON.fullmatch(name) else json.dumps(name)
            made += [text[at : word.start()], json_name]
            at = word.end()
        return "".join(made) + text[at:], ""
