"""Reads the arguments of a tool call, which are a JSON object, while their text arrives."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

# Deeper values are not read early. Python's own JSON reader gives up at about 1,000.
MAX_DEPTH = 100

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
)
# The beginning of an escape that more text may complete.
_PARTIAL = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}"
    r"|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?)?"
)
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_SPACE = re.compile(r"[ \t\n\r]+")
_NESTED = re.compile(r'[^"{}\[\]]+')
_NESTED_STRING = re.compile(r'[^"\\]+')


@dataclass(frozen=True, slots=True)
class ObjectMember:
    """The argument `key` is complete."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class MemberText:
    """More text of the argument `key`, which is a string. Its escapes are decoded."""

    key: str
    text: str


ReaderEvent = ObjectMember | MemberText


class _At(Enum):
    """The place in the object that the next character belongs to."""

    START = auto()  # before the object
    FIRST = auto()  # before the first key or the end
    KEY = auto()  # after a comma
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_STRING = auto()
    IN_NESTED = auto()  # in an object or a list
    IN_SCALAR = auto()  # in a number or a word, which only a delimiter ends
    AFTER = auto()  # after a value
    CLOSED = auto()  # after the object
    BROKEN = auto()  # the text is no JSON object


# What one character does where white space may stand. Any other character breaks the object.
_PUNCTUATION = {
    _At.START: {"{": _At.FIRST},
    _At.FIRST: {'"': _At.IN_KEY, "}": _At.CLOSED},
    _At.KEY: {'"': _At.IN_KEY},
    _At.COLON: {":": _At.VALUE},
    _At.VALUE: {'"': _At.IN_STRING},
    _At.AFTER: {",": _At.KEY, "}": _At.CLOSED},
    _At.CLOSED: {},
}


class ArgumentReader:
    """Reads the text of a JSON object in parts, and returns what each part completes.

    The reader is strict: after the first error the reader returns nothing more, and the object
    never closes. A key that occurs twice and half of a surrogate pair are errors, because JSON
    readers differ on them.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self._at = _At.START
        self._held = ""  # the beginning of an escape whose end has not arrived
        self._key = ""
        self._pieces: list[str] = []  # the key or value so far: decoded in a string, else JSON
        self._depth = 0
        self._in_string = False  # in a string of a nested value

    @property
    def is_closed(self) -> bool:
        """Whether the object is complete, and nothing but white space follows it."""
        return self._at is _At.CLOSED

    def feed(self, text: str) -> list[ReaderEvent]:
        """Read more text, and return what it completes."""
        text, self._held = self._held + text, ""
        events: list[ReaderEvent] = []
        place = 0
        while place < len(text) and self._at is not _At.BROKEN:
            if self._at in (_At.IN_KEY, _At.IN_STRING):
                place = self._string(text, place, events)
            elif self._at is _At.IN_NESTED:
                place = self._nested(text, place, events)
            elif self._at is _At.IN_SCALAR:
                place = self._scalar(text, place, events)
            else:
                place = self._punctuation(text, place)
        return events

    def _punctuation(self, text: str, place: int) -> int:
        if space := _SPACE.match(text, place):
            return space.end()
        char = text[place]
        if self._at is _At.VALUE and char != '"':
            self._at = _At.IN_NESTED if char in "{[" else _At.IN_SCALAR
            return place
        self._at = _PUNCTUATION[self._at].get(char, _At.BROKEN)
        return place + 1

    def _string(self, text: str, place: int, events: list[ReaderEvent]) -> int:
        if plain := _PLAIN.match(text, place):
            self._say(plain.group(), events)
            return plain.end()
        if text[place] == '"':
            self._end_string(events)
            return place + 1
        if escape := _ESCAPE.match(text, place):
            self._say(json.loads(f'"{escape.group()}"'), events)
            return escape.end()
        if _PARTIAL.fullmatch(text, place):
            self._held = text[place:]
        else:
            self._at = _At.BROKEN
        return len(text)

    def _say(self, text: str, events: list[ReaderEvent]) -> None:
        self._pieces.append(text)
        if self._at is _At.IN_KEY:
            return
        if events and isinstance(events[-1], MemberText):
            text = events.pop().text + text  # type: ignore[union-attr]  # of the same string
        events.append(MemberText(self._key, text))

    def _end_string(self, events: list[ReaderEvent]) -> None:
        whole = "".join(self._pieces)
        self._pieces.clear()
        if self._at is _At.IN_STRING:
            self._close(whole, events)
        elif whole in self.value:
            self._at = _At.BROKEN
        else:
            self._key, self._at = whole, _At.COLON

    def _nested(self, text: str, place: int, events: list[ReaderEvent]) -> int:
        plain = (_NESTED_STRING if self._in_string else _NESTED).match(text, place)
        if plain:
            self._pieces.append(plain.group())
            return plain.end()
        char = text[place]
        if self._in_string and char == "\\":
            if place + 1 == len(text):
                self._held = char
                return len(text)
            self._pieces.append(text[place : place + 2])
            return place + 2
        self._pieces.append(char)
        if char == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if char in "{[" else -1
            if self._depth == 0:
                self._end_json(events)
            elif self._depth > MAX_DEPTH:
                self._at = _At.BROKEN
        return place + 1

    def _scalar(self, text: str, place: int, events: list[ReaderEvent]) -> int:
        if found := _SCALAR.match(text, place):
            self._pieces.append(found.group())
            return found.end()
        self._end_json(events)
        return place

    def _end_json(self, events: list[ReaderEvent]) -> None:
        whole = "".join(self._pieces)
        self._pieces.clear()
        try:
            value = strict_json(whole)
        except ValueError:
            self._at = _At.BROKEN
        else:
            self._close(value, events)

    def _close(self, value: Any, events: list[ReaderEvent]) -> None:
        self.value[self._key] = value
        self._at = _At.AFTER
        events.append(ObjectMember(self._key, value))


def strict_json(text: str) -> Any:
    """The value of JSON text.

    Raises ValueError for NaN, Infinity, a key that comes twice and half of a surrogate pair.
    """
    value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_members)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice")
    return made
