"""Transforms of any value: its text, one entry of it, or its items joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_KEYS,
    MAX_OPTION_CHARS,
    Transform,
    ValueFlow,
    as_text,
    refuse,
)


@dataclass(frozen=True, slots=True)
class String(Transform):
    """The text itself (StrOutputParser)."""

    op: ClassVar[str] = "string"
    flow: ClassVar[ValueFlow] = ValueFlow.STREAM

    def apply(self, value: Any) -> Any:
        return as_text(value, self.op)


@dataclass(frozen=True, slots=True)
class Strip(Transform):
    """The text without surrounding white space (Python's str.strip)."""

    op: ClassVar[str] = "strip"

    def apply(self, value: Any) -> Any:
        return as_text(value, self.op).strip()


@dataclass(frozen=True, slots=True)
class Path(Transform):
    """The result of Python's value[key1][key2]... (itemgetter)."""

    op: ClassVar[str] = "path"
    keys: tuple[str | int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.keys, tuple) or not 0 < len(self.keys) <= MAX_KEYS:
            refuse(f"path takes 'keys', a list of 1 to {MAX_KEYS} strings or integers")
        if not all(type(key) in (str, int) for key in self.keys):
            refuse("each of path's 'keys' is a string or an integer")

    def apply(self, value: Any) -> Any:
        try:
            for key in self.keys:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise TransformFailed(f"{type(error).__name__}: {error}") from error
        return value


@dataclass(frozen=True, slots=True)
class Str(Transform):
    """The value as an f-string shows it: text as it is, any other JSON value by Python's str."""

    op: ClassVar[str] = "str"

    def apply(self, value: Any) -> Any:
        return str(value)


@dataclass(frozen=True, slots=True)
class Repr(Transform):
    """The value as Python's repr shows it. An f-string shows the items of a list in this way."""

    op: ClassVar[str] = "repr"

    def apply(self, value: Any) -> Any:
        return repr(value)


@dataclass(frozen=True, slots=True)
class Join(Transform):
    """The result of Python's separator.join(value)."""

    op: ClassVar[str] = "join"
    separator: str

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) > MAX_OPTION_CHARS:
            refuse(f"join takes 'separator', at most {MAX_OPTION_CHARS} characters")

    def apply(self, value: Any) -> Any:
        try:
            return self.separator.join(value)
        except TypeError as error:
            raise TransformFailed(f"TypeError: {error}") from error

    def joined(self, items: Sequence[Any]) -> str:
        """The items so far. There is no separator at the end."""
        return str(self.apply(items))
