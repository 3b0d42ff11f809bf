"""Transforms that are methods of Python's text and dict, with constant arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import (
    MAX_OPTION_CHARS,
    MAX_TEXT_CHARS,
    Transform,
    check_text,
    refuse,
)

# The least and the greatest number of arguments of each method. The results depend only on the text
# and the arguments. Lists and dicts have none of these methods, so they fail as in Python.
METHODS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "strip": (0, 1),
        "lstrip": (0, 1),
        "rstrip": (0, 1),
        "lower": (0, 0),
        "upper": (0, 0),
        "casefold": (0, 0),
        "title": (0, 0),
        "capitalize": (0, 0),
        "swapcase": (0, 0),
        "removeprefix": (1, 1),
        "removesuffix": (1, 1),
        "replace": (2, 2),
        "split": (0, 2),
        "rsplit": (0, 2),
        "splitlines": (0, 0),
        "startswith": (1, 1),
        "endswith": (1, 1),
        "count": (1, 1),
        "find": (1, 1),
        "isalnum": (0, 0),
        "isalpha": (0, 0),
        "isdecimal": (0, 0),
        "isdigit": (0, 0),
        "islower": (0, 0),
        "isnumeric": (0, 0),
        "isspace": (0, 0),
        "isupper": (0, 0),
    }
)
LISTS = frozenset({"split", "rsplit", "splitlines"})
"""The methods that make a list of texts."""

FACTS = frozenset(
    {
        "startswith",
        "endswith",
        "count",
        "find",
        "isalnum",
        "isalpha",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "isupper",
    }
)
"""The methods that make a number or a truth value. Those in neither set make a text."""

_NEED_TEXT = frozenset(
    {"replace", "removeprefix", "removesuffix", "startswith", "endswith", "count", "find"}
)


@dataclass(frozen=True, slots=True)
class TextMethod(Transform):
    """The result of a method of Python's str with these arguments."""

    op: ClassVar[str] = "text"
    method: str
    args: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            refuse(f"text takes a 'method' of {', '.join(METHODS)}")
        least, most = METHODS[self.method]
        if not isinstance(self.args, tuple) or not least <= len(self.args) <= most:
            refuse(f"{self.method} takes {least} to {most} 'args'")
        for index, arg in enumerate(self.args):
            if self.method in LISTS and index == 1:
                if type(arg) is not int:
                    refuse(f"the second of {self.method}'s 'args' is a number")
            elif arg is not None or self.method in _NEED_TEXT:
                check_text(arg, f"each of {self.method}'s 'args'", MAX_OPTION_CHARS)
        if self.method in LISTS and self.args[:1] == ("",):
            refuse(f"{self.method} takes no empty separator")

    def apply(self, value: Any) -> Any:
        if not isinstance(value, str):
            kind = type(value).__name__
            raise TransformFailed(
                f"AttributeError: {kind!r} object has no attribute {self.method!r}"
            )
        if self.method == "replace":
            old, new = self.args
            if len(value) + value.count(old) * len(new) > MAX_TEXT_CHARS:
                raise TransformFailed(f"replace makes more than {MAX_TEXT_CHARS} characters")
        return getattr(value, self.method)(*self.args)


@dataclass(frozen=True, slots=True)
class Len(Transform):
    """The result of Python's len(value)."""

    op: ClassVar[str] = "len"

    def apply(self, value: Any) -> Any:
        try:
            return len(value)
        except TypeError as error:
            raise TransformFailed(f"TypeError: {error}") from error


@dataclass(frozen=True, slots=True)
class Get(Transform):
    """The result of Python's dict.get: the item at `key`, or `default`."""

    op: ClassVar[str] = "get"
    key: str
    default: Any = None

    def __post_init__(self) -> None:
        check_text(self.key, "get's 'key'")
        if isinstance(self.default, str):
            check_text(self.default, "get's 'default'")
        elif self.default is not None and type(self.default) not in (bool, int):
            refuse("get's 'default' is a text, a whole number, true, false or null")

    def apply(self, value: Any) -> Any:
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise TransformFailed(f"AttributeError: {kind!r} object has no attribute 'get'")
        return value.get(self.key, self.default)
