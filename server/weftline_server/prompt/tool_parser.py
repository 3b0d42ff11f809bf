"""Parses tool calls out of a model's text while it streams."""

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

# The usual beginning of a call. A call with another order of fields is read when it is complete.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)
MAX_HEAD = 4096  # characters; text that is no call by then is not one


@dataclass(frozen=True, slots=True)
class Said:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """Call number `index` begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text that is the arguments of call number `index`."""

    index: int
    text: str


Delta = Said | Called | Arguments


class _State(Enum):
    BEGIN = auto()  # only white space so far
    SAYING = auto()
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # after the arguments, before the end of the call


class ToolParser:
    """Takes an answer's text piece by piece.

    The ids of its calls are derived from `key`, so they are the same each time. Bare JSON (Llama,
    or Mistral without its mark) counts as a call only if it begins the answer and names one of
    `names`. Text that only looks like a call stays text. If `single`, only the first call counts.
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
        self._held = ""  # text that may still turn out to be a call
        self._tagged = False  # the call began with its mark, so it counts whatever it names
        self._json = JsonScanner()
        self._quoted = False  # the arguments are a string that holds JSON
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """Take more text, and return the deltas that it completes."""
        self._held += text
        return [one for one in self._advance(last=False) if self._counts(one)]

    def end(self) -> list[Delta]:
        """Take the end of the text, and return the last deltas."""
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
            self._held = ""  # white space after a call
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
            # Hold back white space, which is dropped before a call, and the beginning of a mark.
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
        """Wait for the name of a call. After it the arguments can stream."""
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
        """Read a call with an unusual beginning once it is complete."""
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
        """Give up on a call: its text, the mark included, is said."""
        self._state = _State.SAYING
        if self._tagged:
            yield Said(self._mark)

    def _called(self, name: str) -> Called:
        self.calls += 1
        index = self.calls - 1
        digest = hashlib.sha256(f"{self._key}:{index}".encode()).hexdigest()
        # Mistral's templates take only ids of nine letters and digits.
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
    """Finds the end of a JSON value that comes piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False

    def feed(self, text: str) -> int | None:
        """Return the index after the value's last character in `text`; None if it goes on."""
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
                    # A bare number or null ends where the list or object around it ends.
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
    """Return the text in a JSON string; None if it is not a valid one."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _call(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments (JSON text) of a complete call; None if it is not one."""
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
    """Return the parser for an output of `call`. `key` identifies the output."""
    names = frozenset(tool.function.name for tool in call.offered_tools)
    return ToolParser(format, names, key, single=not call.parallel_tool_calls)


def message_of(parser: ToolParser, text: str) -> dict[str, Any]:
    """Return a complete answer as OpenAI's assistant message: its text, and its calls if any."""
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
