"""Reads a tool call in the XML that Qwen's coder models write, while it streams.

<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

from weftline.contract.arguments import MemberText, ObjectMember, ReaderEvent, strict_json

BEGIN = "<function="
_PARAMETER_BEGIN = "<parameter="
_END, _VALUE_END = "</function>", "</parameter>"
_NAME = re.compile(r"<function=([^<>\s]{1,128})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,256})>")


class _At(Enum):
    BETWEEN = auto()  # before a parameter or the end
    VALUE_START = auto()  # a line break may follow the parameter's tag
    VALUE = auto()
    END = auto()


class XmlCall:
    """The parameters of one call, after its name. Gives them as JSON text and as arguments.

    `schema` tells which parameters are strings; only their text streams. A parameter without a
    type is a string.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._properties = schema.get("properties") or {}
        self._at = _At.BETWEEN
        self._held = ""
        self._key = ""
        self._pieces: list[str] = []  # of the value
        self._keys: set[str] = set()
        self.is_clean = True  # nothing but parameters, and none of them twice

    def feed(self, text: str) -> tuple[str, list[ReaderEvent], str | None]:
        """Take more text. Return more JSON, the arguments' news, and what follows the call."""
        self._held += text
        made = ""
        events: list[ReaderEvent] = []
        for json_text, new in self._advance():
            made += json_text
            events += new
        return made, events, self._held if self._at is _At.END else None

    def _advance(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        steps = {
            _At.BETWEEN: self._between,
            _At.VALUE_START: self._value_start,
            _At.VALUE: self._value,
        }
        while self._at is not _At.END:
            before = self._at, len(self._held)
            yield from steps[self._at]()
            if (self._at, len(self._held)) == before:
                return

    def _between(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        if found := _PARAMETER.match(self._held):
            self._key = found.group(1)
            self.is_clean = self.is_clean and self._key not in self._keys
            start = ", " if self._keys else "{"
            self._keys.add(self._key)
            self._held, self._at = self._held[found.end() :], _At.VALUE_START
            quote = '"' if self._is_text else ""
            yield f"{start}{_json(self._key)}: {quote}", []
            return
        text = self._held.lstrip()
        if text.startswith(_END):
            self._held, self._at = text[len(_END) :], _At.END
            yield "}" if self._keys else "{}", []
        elif text and not self._may_begin(text):
            self.is_clean = False  # skip what is neither
            cut = text.find("<", 1)
            self._held = "" if cut < 0 else text[cut:]

    @staticmethod
    def _may_begin(text: str) -> bool:
        """Whether more text can make a tag of it."""
        if text.startswith(_PARAMETER_BEGIN):
            return _PARAMETER.match(text + ">") is not None or text == _PARAMETER_BEGIN
        return _begins(text, _PARAMETER_BEGIN, _END)

    @property
    def _is_text(self) -> bool:
        return self._kind in (None, "string")

    @property
    def _kind(self) -> Any:
        found = self._properties.get(self._key)
        return found.get("type") if isinstance(found, dict) else None

    def _value_start(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        if self._held:
            self._held, self._at = self._held.removeprefix("\n"), _At.VALUE
        yield from ()

    def _value(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        text, found, rest = self._held.partition(_VALUE_END)
        if found:
            self._held = rest
            # A line break before the end's tag is layout.
            yield from self._more(text.removesuffix("\n"))
            yield self._closed()
            return
        keep = max(kept_back(text, _VALUE_END), kept_back(text, "\n" + _VALUE_END))
        self._held = text[len(text) - keep :]
        yield from self._more(text[: len(text) - keep])

    def _more(self, text: str) -> Iterator[tuple[str, list[ReaderEvent]]]:
        self._pieces.append(text)
        if text and self._is_text:
            yield _json(text)[1:-1], [MemberText(self._key, text)]

    def _closed(self) -> tuple[str, list[ReaderEvent]]:
        value: Any = "".join(self._pieces)
        self._pieces.clear()
        self._at = _At.BETWEEN
        if self._is_text:
            return '"', [ObjectMember(self._key, value)]
        value = _read(value)
        return _json(value), [ObjectMember(self._key, value)]


def name_in(text: str) -> tuple[str, str] | None:
    """The name of the call that begins `text`, and what follows; None while it is not complete.

    Raises ValueError if `text` begins no call.
    """
    if found := _NAME.match(text):
        return found.group(1), text[found.end() :]
    if len(text) > len(BEGIN) + 128 or ">" in text or not _begins(text, BEGIN):
        raise ValueError("no call begins here")
    return None


def kept_back(text: str, mark: str) -> int:
    """The length of the longest end of `text` that may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


def _begins(text: str, *marks: str) -> bool:
    """Whether `text` begins with one of `marks`, or is the beginning of one."""
    return any(text.startswith(mark) or mark.startswith(text) for mark in marks)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _read(text: str) -> Any:
    """A value that is not declared a string: JSON if it is that, else the text."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text
