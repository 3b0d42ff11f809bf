"""The transforms there are, by name; parsers give exactly what LangChain's parsers give."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from weftline.errors import InvalidRequest, TransformFailed
from weftline.transforms.base import Flow, Transform, as_text
from weftline.transforms.partial_json import parse_json_text

# Bounds on what one spec may cost: repr can double its input, and join multiplies by its separator.
MAX_SPECS = 16
MAX_KEYS = 64
MAX_DEPTH = 128
MAX_SEPARATOR_CHARS = 1024
MAX_TEXT_CHARS = 1 << 24


@dataclass(frozen=True, slots=True)
class String(Transform):
    """The text itself (StrOutputParser)."""

    op: ClassVar[str] = "string"
    flow: ClassVar[Flow] = Flow.STREAM

    def apply(self, value: Any) -> Any:
        return as_text(value, self.op)


@dataclass(frozen=True, slots=True)
class Json(Transform):
    """The JSON value in the text, fenced, cut off or bare (JsonOutputParser).

    NaN, infinities, lone surrogates and deep nesting, which Python's parser lets through, fail: no
    JSON body can carry the first three, and the last would fail further on.
    """

    op: ClassVar[str] = "json"

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op).strip()
        try:
            parsed = parse_json_text(text)
        except json.JSONDecodeError as error:
            raise TransformFailed(f"Invalid json output: {text}") from error
        except RecursionError as error:
            raise TransformFailed(f"ValueError: {_NOT_OURS}") from error
        except ValueError as error:  # a number of more than sys.get_int_max_str_digits() digits
            raise TransformFailed(f"ValueError: {error}") from error
        if not _can_travel(parsed, MAX_DEPTH):
            raise TransformFailed(f"ValueError: {_NOT_OURS}")
        return parsed


_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_OURS = (
    f"the JSON holds NaN, an infinity, a lone surrogate or more than {MAX_DEPTH} levels, "
    "which cannot be sent on; ask the model for plain data"
)


def _can_travel(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return value.isascii() or not _SURROGATE.search(value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        items = [*value, *value.values()]
    elif isinstance(value, list):
        items = value
    else:
        return True
    return depth > 0 and all(_can_travel(item, depth - 1) for item in items)


@dataclass(frozen=True, slots=True)
class Path(Transform):
    """What Python's value[key1][key2]... gives (itemgetter)."""

    op: ClassVar[str] = "path"
    keys: tuple[str | int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.keys, tuple) or not 0 < len(self.keys) <= MAX_KEYS:
            raise _invalid(f"path takes 'keys', a list of 1 to {MAX_KEYS} strings or integers")
        if not all(type(key) in (str, int) for key in self.keys):
            raise _invalid("each of path's 'keys' is a string or an integer")

    def apply(self, value: Any) -> Any:
        try:
            for key in self.keys:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise TransformFailed(f"{type(error).__name__}: {error}") from error
        return value


@dataclass(frozen=True, slots=True)
class CommaList(Transform):
    """The items of comma-separated text, with CSV's quotes (CommaSeparatedListOutputParser)."""

    op: ClassVar[str] = "comma_list"
    flow: ClassVar[Flow] = Flow.ITEMS

    def apply(self, value: Any) -> Any:
        text = as_text(value, self.op)
        try:
            rows = csv.reader(io.StringIO(text), skipinitialspace=True)
            return [item for row in rows for item in row]
        except csv.Error:  # such as a field of more than csv.field_size_limit() characters
            return [item.strip() for item in text.split(",")]


# LangChain's patterns, but that a match may start only where a run of digits or a line does: theirs
# take quadratic time on a long run of digits or of newlines, and find the same items.
_NUMBERED = re.compile(r"(?<!\d)\d+\.\s([^\n]+)")
_BULLETED = re.compile(r"^[^\S\n]*[-*]\s([^\n]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NumberedList(Transform):
    """The items after '1. ', '2. ' ... (NumberedListOutputParser)."""

    op: ClassVar[str] = "numbered_list"
    flow: ClassVar[Flow] = Flow.ITEMS

    def apply(self, value: Any) -> Any:
        return _NUMBERED.findall(as_text(value, self.op))


@dataclass(frozen=True, slots=True)
class MarkdownList(Transform):
    """The items after '- ' or '* ' at the start of a line (MarkdownListOutputParser)."""

    op: ClassVar[str] = "markdown_list"
    flow: ClassVar[Flow] = Flow.ITEMS

    def apply(self, value: Any) -> Any:
        return _BULLETED.findall(as_text(value, self.op))


@dataclass(frozen=True, slots=True)
class Str(Transform):
    """The value as an f-string shows it: text as it is, any other JSON value by Python's str."""

    op: ClassVar[str] = "str"

    def apply(self, value: Any) -> Any:
        return str(value)


@dataclass(frozen=True, slots=True)
class Repr(Transform):
    """The value as Python's repr shows it, which is how an f-string shows the items of a list."""

    op: ClassVar[str] = "repr"

    def apply(self, value: Any) -> Any:
        return repr(value)


@dataclass(frozen=True, slots=True)
class Join(Transform):
    """What Python's separator.join(value) gives."""

    op: ClassVar[str] = "join"
    separator: str

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) > MAX_SEPARATOR_CHARS:
            raise _invalid(f"join takes 'separator', at most {MAX_SEPARATOR_CHARS} characters")

    def apply(self, value: Any) -> Any:
        try:
            return self.separator.join(value)
        except TypeError as error:
            raise TransformFailed(f"TypeError: {error}") from error


_ALL: tuple[type[Transform], ...] = (
    String,
    Json,
    Path,
    CommaList,
    NumberedList,
    MarkdownList,
    Str,
    Repr,
    Join,
)
OPS: Mapping[str, type[Transform]] = MappingProxyType({cls.op: cls for cls in _ALL})


def parse(spec: Mapping[str, Any]) -> Transform:
    """The transform that `spec` describes; InvalidRequest for an unknown op, field or option."""
    if not isinstance(spec, Mapping):
        raise _invalid("a transform is an object with an 'op'")
    name = spec.get("op")
    cls = OPS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise _invalid(f"unknown transform {str(name)[:40]!r}: use one of {', '.join(OPS)}")
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.items()
        if key != "op"
    }
    fields = {field.name for field in dataclasses.fields(cls)}
    if unknown := options.keys() - fields:
        raise _invalid(f"transform {name!r} has no option {str(min(unknown, key=str))[:40]!r}")
    if missing := fields - options.keys():
        raise _invalid(f"transform {name!r} needs its option {min(missing)!r}")
    return cls(**options)


def run(specs: Sequence[Mapping[str, Any]], value: Any) -> Any:
    """`value` after each of `specs` in order.

    Raises TransformFailed with the message of LangChain's own parser, or "KeyError: 'x'" and the
    like where LangChain would let Python's error through.
    """
    if len(specs) > MAX_SPECS:
        raise _invalid(f"at most {MAX_SPECS} transforms in a row, got {len(specs)}")
    for spec in specs:
        transform = parse(spec)
        value = transform.apply(value)
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
            raise TransformFailed(
                f"{transform.op} made more than {MAX_TEXT_CHARS} characters; shorten its input"
            )
    return value


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="transforms")
