"""Reads tool calls out of a model's text, as it streams: what is said, and what is called."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from weftline.protocol import Call
from weftline_server.prompt.tool_format import ToolFormat

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
_MARKS = {
    ToolFormat.HERMES: OPEN_TAG,
    ToolFormat.LLAMA: "<|python_tag|>",
    ToolFormat.MISTRAL: "[TOOL_CALLS]",
}

# The usual beginning of a call; one with its fields in another order is read when it is whole.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)
MAX_HEAD = 4096  # characters within which a call must have become one


@dataclass(frozen=True, slots=True)
class Said:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """Call number `index` has begun."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text that call number `index` gets as arguments."""

    index: int
    text: str


Delta = Said | Called | Arguments


class _State(Enum):
    BEGIN = auto()  # nothing but white space yet
    SAYING = auto()
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # behind the arguments, before whatever ends the call


class ToolParser:
    """Takes an answer's text piece by piece; `key` makes the ids of its calls, the same each time.

    Bare JSON (Llama, Mistral without its mark) counts as a call only if it is the beginning of the
    answer and names one of `names`. What looks like a call and is none is text. Of `single` calls
    the first counts.
    """

    def __init__(
        self, format: ToolFormat, names: Collection[str], key: str, single: bool = False
    ) -> None:
        self._format = format
        self._mark = _MARKS[format]
        self._names = names
        self._key = key
        self._single = single
        self._state = _State.BEGIN
        self._held = ""  # text that is not decided yet
        self._tagged = False  # the call began with its mark, so it is one whatever it names
        self._json = JsonScanner()
        self._quoted = False  # the arguments are a string that holds JSON
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """What `text` adds to what is known."""
        self._held += text
        return [one for one in self._advance(last=False) if self._counts(one)]

    def end(self) -> list[Delta]:
        """What the end of the text decides."""
        return [one for one in self._advance(last=True) if self._counts(one)]

    def _counts(self, delta: Delta) -> bool:
        return not self._single or isinstance(delta, Said) or delta.index == 0

    def _advance(self, last: bool) -> Iterator[Delta]:
        steps = {
            _State.BEGIN: self._begin,
            _State.SAYING: self._saying,
            _State.HEAD: self._head,
            _State.ARGUMENTS: self._arguments,
            _State.TAIL: self._tail,
        }
        while True:
            before = self._state, len(self._held)
            yield from steps[self._state](last)
            if (self._state, len(self._held)) == before:
                return

    def _begin(self, last: bool) -> Iterator[Delta]:
        text = self._held.lstrip()
        bare = {ToolFormat.LLAMA: "{", ToolFormat.MISTRAL: "{["}.get(self._format, "")
        if text.startswith(self._mark):
            self._enter(text[len(self._mark) :], tagged=True)
        elif text and text[0] in bare:
            self._enter(text, tagged=False)
        elif last and not text and self.calls:
            self._held = ""  # white space behind a call
        elif last or (text and not self._mark.startswith(text)):
            self._state = _State.SAYING
        yield from ()

    def _enter(self, rest: str, tagged: bool) -> None:
        self._held, self._tagged, self._state = rest, tagged, _State.HEAD

    def _saying(self, last: bool) -> Iterator[Delta]:
        mark = self._mark
        before, found, rest = self._held.partition(mark)
        if found:
            self._enter(rest, tagged=True)
            before = before.rstrip()
        elif last:
            self._held = ""
        else:
            # White space before a call belongs to nobody, and a mark may have come in part.
            keep = len(before) - len(before.rstrip())
            size = next((n for n in range(len(mark) - 1, 0, -1) if before.endswith(mark[:n])), 0)
            if size:
                cut = before[:-size]
                keep = size + len(cut) - len(cut.rstrip())
            self._held = before[len(before) - keep :]
            before = before[: len(before) - keep]
        if before:
            yield Said(before)

    def _head(self, last: bool) -> Iterator[Delta]:
        """Wait for a call's name; then its arguments can stream."""
        text = self._held.lstrip("[ \n\t") if self._format is ToolFormat.MISTRAL else self._held
        head = _HEAD.match(text)
        if head is None:
            yield from self._whole(text, last)
        elif len(text) > head.end():
            name = _string(head.group(1))
            if name is not None and (self._tagged or name in self._names):
                yield self._called(name)
                self._held, self._json = text[head.end() :], JsonScanner()
                self._quoted = self._held.startswith('"')
                self._state = _State.ARGUMENTS
            else:
                yield from self._give_up()
        elif last:
            yield from self._give_up()

    def _whole(self, text: str, last: bool) -> Iterator[Delta]:
        """A call that is written in another way is read when all of it is there."""
        if self._tagged and self._format is ToolFormat.HERMES:
            body, closed, rest = text.partition(CLOSE_TAG)
            end = len(body) if closed else None
            rest = closed + rest
        else:
            end = JsonScanner().feed(text)
            body, rest = text[:end], "" if end is None else text[end:]
        found = None if end is None else _call(body)
        if found is not None and (self._tagged or found[0] in self._names):
            yield self._called(found[0])
            yield Arguments(self.calls - 1, found[1])
            self._held, self._state = rest, _State.TAIL
        elif end is not None or last or len(text) > MAX_HEAD:
            yield from self._give_up()

    def _give_up(self) -> Iterator[Delta]:
        """It was no call: what began like one is said, its mark too."""
        self._state = _State.SAYING
        if self._tagged:
            yield Said(self._mark)

    def _called(self, name: str) -> Called:
        self.calls += 1
        index = self.calls - 1
        digest = hashlib.sha256(f"{self._key}:{index}".encode()).hexdigest()
        # Mistral's templates take ids of nine letters and digits, and no others.
        id = digest[:9] if self._format is ToolFormat.MISTRAL else f"call_{digest[:24]}"
        return Called(index, id, name)

    def _arguments(self, last: bool) -> Iterator[Delta]:
        if self._quoted:
            end = JsonScanner().feed(self._held)
            if end is None and not last:
                return
            raw = self._held[:end]
            self._held = "" if end is None else self._held[end:]
            self._state = _State.TAIL
            yield Arguments(self.calls - 1, _string(raw) or raw)
            return
        end = self._json.feed(self._held)
        if end is None:
            text, self._held = self._held, ""
        else:
            text, self._held = self._held[:end], self._held[end:]
            self._state = _State.TAIL
        if text:
            yield Arguments(self.calls - 1, text)

    def _tail(self, last: bool) -> Iterator[Delta]:
        if self._format is ToolFormat.HERMES:
            _, found, rest = self._held.partition(CLOSE_TAG)
            if found:
                self._held, self._state = rest, _State.BEGIN
            elif last:
                self._held = ""
        else:
            rest = self._held.lstrip("} \n\t;,")
            if rest[:1] == "{":
                self._enter(rest, tagged=self._tagged)
            elif rest or last:
                self._held, self._state = rest.lstrip("] \n\t"), _State.BEGIN
        yield from ()


class JsonScanner:
    """Finds where a JSON value ends that comes piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False

    def feed(self, text: str) -> int | None:
        """The index behind the value's last character in `text`; None if it goes on."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._leaves_string(char) and self._depth == 0:
                    return index + 1
            elif char == '"':
                self._in_string = self._begun = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    # Behind a bare number or null stands the end of what holds it.
                    return index + 1 if self._depth == 0 else index
            elif char == "," and self._depth == 0 and self._begun:
                return index
            elif not char.isspace():
                self._begun = True
        return None

    def _leaves_string(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
        return not self._in_string


def _string(text: str) -> str | None:
    """The text that a JSON string holds."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _call(text: str) -> tuple[str, str] | None:
    """Name and arguments, as JSON text, of a whole call; None if it is none."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return value["name"], arguments


def parser_of(call: Call, key: str, format: ToolFormat) -> ToolParser:
    """The parser for an output of `call`; `key` tells the output from all others."""
    names = frozenset(tool.function.name for tool in call.offered_tools)
    return ToolParser(format, names, key, single=not call.parallel_tool_calls)


def message_of(parser: ToolParser, text: str) -> dict[str, Any]:
    """A whole answer as OpenAI's assistant message: its text, and its calls where there are any."""
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    for delta in (*parser.feed(text), *parser.end()):
        match delta:
            case Said(more):
                said.append(more)
            case Called(_, id, name):
                function = {"name": name, "arguments": ""}
                calls.append({"id": id, "type": "function", "function": function})
            case Arguments(index, more):
                calls[index]["function"]["arguments"] += more
    content = "".join(said)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message
