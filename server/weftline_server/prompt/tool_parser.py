"""Parses tool calls out of a model's text while it streams."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from weftline.contract.arguments import ArgumentReader, MemberText, ObjectMember, ReaderEvent
from weftline_server.prompt.tool_format import MISTRALS, ToolFormat
from weftline_server.prompt.tool_xml import GLM, QWEN, XmlCall, XmlStyle, kept_back, name_in

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
_MARKS = {
    ToolFormat.HERMES: OPEN_TAG,
    ToolFormat.LLAMA: "<|python_tag|>",
    ToolFormat.MISTRAL: "[TOOL_CALLS]",
    ToolFormat.MISTRAL_NAMED: "[TOOL_CALLS]",
    ToolFormat.GRANITE: "<|tool_call|>",
}
_LISTS = (ToolFormat.MISTRAL, ToolFormat.GRANITE)  # calls are entries of a list

# The usual beginning of a call. A call with another order of fields is read when it is complete.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)
_NAME = re.compile(r'\{"name":"(?:[^"\\]|\\.)*')  # without white space, and without its end
# A call that begins with its name, and a beginning of one. Engines leave special tokens such as
# `[ARGS]` out of their texts.
_NAMED = re.compile(
    r"([\w.-]{1,128})\s{0,8}(?:\[CALL_ID\]\s{0,8}\w{0,64}\s{0,8})?(?:\[ARGS\]\s{0,8})?(?=\{)"
)
_BEGINS_NAMED = re.compile(r"[\w.-]{0,128}\s{0,8}(?:\[[A-Z_]{0,8}\]?\s{0,8}\w{0,64}\s{0,8}){0,2}")
MAX_HEAD = 4096  # characters; text that is no call by then is not one
SURE_MARK = 6  # characters of a mark, such as "<tool_", that are no text if the answer ends there


@dataclass(frozen=True, slots=True)
class Said:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the thinking block before the answer."""

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


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument `key` of call number `index` is complete."""

    index: int
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """More text of the argument `key`, which is a string. Its escapes are decoded."""

    index: int
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """Call number `index` is complete: its arguments are an object, and its closing mark is there.

    A call that is cut off is never sealed, nor is one whose arguments are not strict JSON.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The answer has ended inside the arguments of call number `index`, so it is no call."""

    index: int


Delta = Said | Thought | Called | Arguments | Argument | ArgumentText | Sealed | Unfinished


class _State(Enum):
    BEGIN = auto()  # only white space so far
    SAYING = auto()
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    QUOTED = auto()  # in arguments that are a string, which holds JSON
    XML = auto()  # in the parameters of a call in XML
    TAIL = auto()  # after the arguments, before the end of the call


_IN_ARGUMENTS = frozenset({_State.ARGUMENTS, _State.QUOTED, _State.XML})
_NULL = "null"  # as arguments it is an empty object


class ToolParser:
    """Takes an answer's text piece by piece.

    `Called`, `Arguments` and `Said` are what OpenAI's stream sends. `Argument`, `ArgumentText` and
    `Sealed` tell of the same arguments as they are decoded, for tools that start before the answer
    ends. However the text is cut, the pieces of each kind add up to the same.

    The ids of its calls are derived from `key`, so they are the same each time. Bare JSON (Llama,
    or Mistral without its mark), and a bare name before JSON, count as a call only if they begin
    the answer and name one of `names`. Text that only looks like a call stays text. A call that is
    cut off before its arguments is neither. If `single`, only the first call counts.
    """

    def __init__(
        self,
        format: ToolFormat,
        names: Collection[str] | Mapping[str, Mapping[str, Any]],
        key: str,
        single: bool = False,
    ) -> None:
        self._format = format
        self._names = names
        self._key = key
        self._single = single
        self._state = _State.BEGIN
        self._held = ""  # text that may still turn out to be a call
        self._tagged = False  # the call began with its mark, so it counts whatever it names
        self._json = JsonScanner()
        self._reader = ArgumentReader()
        self._xml: XmlCall | None = None
        self._closing = "}"  # what stands between the arguments and the mark that closes the call
        self.calls = 0

    @property
    def _mark(self) -> str:
        return _MARKS[self._format]

    def feed(self, text: str) -> list[Delta]:
        """Take more text, and return the deltas that it completes."""
        self._held += text
        return [one for one in self._advance(last=False) if self._counts(one)]

    def end(self) -> list[Delta]:
        """Take the end of the text, and return the last deltas."""
        found = list(self._advance(last=True))
        if self._state in _IN_ARGUMENTS:
            found.append(Unfinished(self.calls - 1))
        return [one for one in found if self._counts(one)]

    def _counts(self, delta: Delta) -> bool:
        return not self._single or isinstance(delta, Said | Thought) or delta.index == 0

    def _advance(self, last: bool) -> Iterator[Delta]:
        steps = {
            _State.BEGIN: self._begin,
            _State.SAYING: self._saying,
            _State.HEAD: self._head,
            _State.ARGUMENTS: self._arguments,
            _State.QUOTED: self._quoted,
            _State.XML: self._parameters,
            _State.TAIL: self._tail,
        }
        while True:
            before = self._state, len(self._held)
            yield from steps[self._state](last)
            if (self._state, len(self._held)) == before:
                return

    def _begin(self, last: bool) -> Iterator[Delta]:
        text = self._held.lstrip()
        bare = {ToolFormat.LLAMA: "{", **dict.fromkeys(_LISTS, "{[")}.get(self._format, "")
        if text.startswith(self._mark):
            self._enter(text[len(self._mark) :], tagged=True)
        elif text and (text[0] in bare or self._may_be_named(text)):
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
            size = kept_back(before, mark)
            if size >= SURE_MARK:
                before = before[:-size].rstrip()
            self._held = ""
        else:
            # Hold back white space, which is dropped before a call, and the beginning of a mark.
            keep = len(before) - len(before.rstrip())
            if size := kept_back(before, mark):
                cut = before[:-size]
                keep = size + len(cut) - len(cut.rstrip())
            self._held = before[len(before) - keep :]
            before = before[: len(before) - keep]
        if before:
            yield Said(before)

    def _head(self, last: bool) -> Iterator[Delta]:
        """Wait for the name of a call. After it the arguments can stream."""
        text = self._held.lstrip("[ \n\t") if self._format in _LISTS else self._held
        head = _HEAD.match(text)
        if self._format is ToolFormat.HERMES and text.lstrip()[:1] == "<":
            yield from self._xml_head(QWEN, text.lstrip(), last)
        elif self._format is ToolFormat.HERMES and text.lstrip()[:1] not in ("", "{"):
            yield from self._xml_head(GLM, text.lstrip(), last)
        elif self._format is ToolFormat.MISTRAL_NAMED:
            yield from self._named_head(text.lstrip(), last)
        elif head is None:
            yield from self._whole(text, last)
        elif len(text) > head.end():
            name = _string(head.group(1))
            if name is not None and (self._tagged or name in self._names):
                yield self._called(name)
                self._held, self._json = text[head.end() :], JsonScanner()
                quoted = self._held.startswith('"')
                self._state = _State.QUOTED if quoted else _State.ARGUMENTS
            else:
                yield from self._give_up()
        elif last:
            yield from self._give_up(cut_off=True)

    def _may_be_named(self, text: str) -> bool:
        """Whether a call may begin with its name, and `text` begins with one or begins one."""
        return self._format is ToolFormat.MISTRAL_NAMED and any(
            text.startswith(name) or name.startswith(text) for name in self._names
        )

    def _named_head(self, text: str, last: bool) -> Iterator[Delta]:
        head = _NAMED.match(text)
        if head is not None and (self._tagged or head.group(1) in self._names):
            yield self._called(head.group(1))
            self._held, self._json = text[head.end() :], JsonScanner()
            self._state = _State.ARGUMENTS
        elif head is not None or last or not _BEGINS_NAMED.fullmatch(text):
            yield from self._give_up(cut_off=_BEGINS_NAMED.fullmatch(text) is not None)

    def _xml_head(self, style: XmlStyle, text: str, last: bool) -> Iterator[Delta]:
        """A name alone, as GLM writes it, is a call only of a tool that exists."""
        try:
            found = name_in(text, style)
        except ValueError:
            yield from self._give_up()
            return
        if found is None:
            if last:
                is_named = style is QWEN or any(name.startswith(text) for name in self._names)
                yield from self._give_up(cut_off=is_named)
        elif found[1].startswith(CLOSE_TAG) and found[0] not in self._names:
            yield from self._give_up()
        else:
            name, self._held = found
            yield self._called(name)
            schema = self._names.get(name) if isinstance(self._names, Mapping) else None
            self._xml, self._closing, self._state = XmlCall(style, schema or {}), "", _State.XML

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
            yield from self._read(found[1])
            if self._reader.is_closed:
                yield Sealed(self.calls - 1)
                self._reader = ArgumentReader()  # so that the tail does not seal it again
            self._held, self._state = rest, _State.TAIL
        elif end is not None or last or len(text) > MAX_HEAD:
            yield from self._give_up(cut_off=last and end is None and _may_be_head(text))

    def _give_up(self, cut_off: bool = False) -> Iterator[Delta]:
        """Give up on a call: its text, the mark included, is said. A call that was `cut_off` behind
        its mark is no text of the answer."""
        self._state = _State.SAYING
        if self._tagged and cut_off:
            self._held = ""
        elif self._tagged:
            yield Said(self._mark)

    def _called(self, name: str) -> Called:
        self.calls += 1
        self._reader, self._closing = ArgumentReader(), "}"
        index = self.calls - 1
        digest = hashlib.sha256(f"{self._key}:{index}".encode()).hexdigest()
        # Mistral's templates take only ids of nine letters and digits.
        id = digest[:9] if self._format in MISTRALS else f"call_{digest[:24]}"
        return Called(index, id, name)

    def _arguments(self, last: bool) -> Iterator[Delta]:
        is_first = not self._json.begun
        if is_first and not last and _NULL.startswith(self._held):
            return
        end = self._json.feed(self._held)
        if end is None:
            text, self._held = self._held, ""
        else:
            text, self._held = self._held[:end], self._held[end:]
            self._state = _State.TAIL
        if text:
            yield from self._read(_object(text) if is_first else text)

    def _quoted(self, last: bool) -> Iterator[Delta]:
        end = JsonScanner().feed(self._held)
        if end is None:
            return
        raw, self._held, self._state = self._held[:end], self._held[end:], _State.TAIL
        text = _string(raw)
        yield from self._read(raw if text is None else _object(text))

    def _read(self, text: str) -> Iterator[Delta]:
        """More of the arguments, as text and decoded."""
        yield Arguments(self.calls - 1, text)
        yield from _decoded(self.calls - 1, self._reader.feed(text))

    def _parameters(self, last: bool) -> Iterator[Delta]:
        assert self._xml is not None, "the call is in XML"
        text, events, rest = self._xml.feed(self._held)
        self._held = ""
        if text:
            yield Arguments(self.calls - 1, text)
        yield from _decoded(self.calls - 1, events)
        if rest is not None:
            self._held, self._state = rest, _State.TAIL

    @property
    def _is_whole(self) -> bool:
        """Whether the arguments of the latest call are a complete object."""
        xml = self._closing == "" and self._xml is not None and self._xml.is_clean
        return xml or self._reader.is_closed

    def _tail(self, last: bool) -> Iterator[Delta]:
        if self._format is ToolFormat.HERMES:
            between, found, rest = self._held.partition(CLOSE_TAG)
            if found:
                if self._is_whole and between.strip() == self._closing:
                    yield Sealed(self.calls - 1)
                self._held, self._state = rest, _State.BEGIN
            elif last:
                self._held = ""
        elif self._format is ToolFormat.MISTRAL_NAMED:
            if self._reader.is_closed:
                yield Sealed(self.calls - 1)
            self._state = _State.BEGIN
        else:
            text = self._held.lstrip()
            if text[:1] == "}" and self._reader.is_closed:
                yield Sealed(self.calls - 1)
                self._reader = ArgumentReader()
            rest = self._held.lstrip("} \n\t;,")
            if rest[:1] == "{":
                self._enter(rest, tagged=self._tagged)
            elif rest or last:
                self._held, self._state = rest.lstrip("] \n\t"), _State.BEGIN


def _decoded(index: int, events: list[ReaderEvent]) -> Iterator[Delta]:
    for event in events:
        match event:
            case ObjectMember(key, value):
                yield Argument(index, key, value)
            case MemberText(key, text):
                yield ArgumentText(index, key, text)


class JsonScanner:
    """Finds the end of a JSON value that comes piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.begun = False  # whether more than white space has come

    def feed(self, text: str) -> int | None:
        """Return the index after the value's last character in `text`; None if it goes on."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._leaves_string(char) and self._depth == 0:
                    return index + 1
            elif char == '"':
                self._in_string = self.begun = True
            elif char in "{[":
                self._depth += 1
                self.begun = True
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    # A bare number or null ends where the list or object around it ends.
                    return index + 1 if self._depth == 0 else index
            elif char == "," and self._depth == 0 and self.begun:
                return index
            elif not char.isspace():
                self.begun = True
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


def _may_be_head(text: str) -> bool:
    """Whether `text` is the beginning of a call that lacks its name or its arguments."""
    bare = "".join(text.split())
    if bare.startswith(('{"arguments":', '{"parameters":')):
        return True  # its name comes last
    found = _NAME.match(bare)
    rest = bare[found.end() :] if found else ""
    ends = ('","arguments":', '","parameters":') if found else ('{"name":"', '{"arguments":')
    return any(end.startswith(rest if found else bare) for end in ends)


def _call(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments (JSON text) of a complete call; None if it is not one."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return value["name"], _object(arguments)


def _object(arguments: str) -> str:
    """The JSON text of arguments. Those that a model leaves out are an empty object."""
    return "{}" if arguments.strip() in ("", _NULL) else arguments
