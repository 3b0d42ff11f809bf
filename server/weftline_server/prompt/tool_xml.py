"""Reads a tool call in the XML that Qwen's coder models and GLM write, while it streams.

Qwen:                   GLM, with or without the line breaks:

<function=NAME>         NAME
<parameter=KEY>         <arg_key>KEY</arg_key>
VALUE                   <arg_value>VALUE</arg_value>
</parameter>
</function>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from weftline.contract.arguments import MemberText, ObjectMember, ReaderEvent, strict_json


@dataclass(frozen=True, slots=True)
class XmlStyle:
    """How a family writes the parts of a call.

    `name_part` and `key_part` match each beginning of `name` and `key`, and perhaps more. `layout`
    stands on either side of a value. `end` follows the last parameter. With `leaves_end` it also
    closes what is around the call, so it is not taken away.
    """

    name: re.Pattern[str]
    name_part: re.Pattern[str]
    key: re.Pattern[str]
    key_part: re.Pattern[str]
    value_end: str
    layout: str
    end: str
    leaves_end: bool


QWEN = XmlStyle(
    name=re.compile(r"<function=([^<>\s]{1,128})>"),
    name_part=re.compile(r"<?|<f[functio]{0,7}|<function=[^<>\s]{0,128}"),
    key=re.compile(r"\s*<parameter=([^<>\n]{1,256})>"),
    key_part=re.compile(r"<|<p[aramet]{0,8}|<parameter=[^<>\n]{0,256}"),
    value_end="</parameter>",
    layout="\n",
    end="</function>",
    leaves_end=False,
)
GLM = XmlStyle(
    name=re.compile(r"([\w.-]{1,128})\s{0,8}(?=<arg_key>|</tool_call>)"),
    name_part=re.compile(r"[\w.-]{0,128}\s{0,8}(?:</?[a-z_]{0,9})?"),
    key=re.compile(r"\s*<arg_key>([^<>\n]{1,256})</arg_key>\s{0,8}<arg_value>"),
    key_part=re.compile(
        r"<[arg_key]{0,7}|<arg_key>[^<>\n]{0,256}"
        r"(?:<[/arg_key]{0,8}|</arg_key>\s{0,8}(?:<[arg_value]{0,9})?)?"
    ),
    value_end="</arg_value>",
    layout="",
    end="</tool_call>",
    leaves_end=True,
)


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

    def __init__(self, style: XmlStyle, schema: Mapping[str, Any]) -> None:
        self._style = style
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
        if found := self._style.key.match(self._held):
            self._key = found.group(1)
            self.is_clean = self.is_clean and self._key not in self._keys
            start = ", " if self._keys else "{"
            self._keys.add(self._key)
            self._held, self._at = self._held[found.end() :], _At.VALUE_START
            quote = '"' if self._is_text else ""
            yield f"{start}{_json(self._key)}: {quote}", []
            return
        text = self._held.lstrip()
        if text.startswith(self._style.end):
            self._held = text if self._style.leaves_end else text[len(self._style.end) :]
            self._at = _At.END
            yield "}" if self._keys else "{}", []
        elif text and not self._may_begin(text):
            self.is_clean = False  # skip what is neither
            cut = text.find("<", 1)
            self._held = "" if cut < 0 else text[cut:]

    def _may_begin(self, text: str) -> bool:
        """Whether more text can make a tag of it."""
        is_key = self._style.key_part.fullmatch(text) is not None
        return is_key or self._style.end.startswith(text)

    @property
    def _is_text(self) -> bool:
        return self._kind in (None, "string")

    @property
    def _kind(self) -> Any:
        found = self._properties.get(self._key)
        return found.get("type") if isinstance(found, dict) else None

    def _value_start(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        if self._held:
            self._held, self._at = self._held.removeprefix(self._style.layout), _At.VALUE
        yield from ()

    def _value(self) -> Iterator[tuple[str, list[ReaderEvent]]]:
        end, layout = self._style.value_end, self._style.layout
        text, found, rest = self._held.partition(end)
        if found:
            self._held = rest
            yield from self._more(text.removesuffix(layout))
            yield self._closed()
            return
        keep = max(kept_back(text, end), kept_back(text, layout + end))
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


def name_in(text: str, style: XmlStyle) -> tuple[str, str] | None:
    """The name of the call that begins `text`, and what follows; None while it is not complete.

    Raises ValueError if `text` begins no call.
    """
    if found := style.name.match(text):
        return found.group(1), text[found.end() :]
    if not style.name_part.fullmatch(text):
        raise ValueError("no call begins here")
    return None


def kept_back(text: str, mark: str) -> int:
    """The length of the longest end of `text` that may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _read(text: str) -> Any:
    """A value that is not declared a string: JSON if it is that, else the text."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text
