"""The base class of transforms: frozen options, how a stream passes through, and `apply`."""

from __future__ import annotations

import importlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, ClassVar, NoReturn

from weftline.contract.errors import InvalidRequest, TransformFailed

# Bounds on the options of a spec, and on values.
MAX_KEYS = 64
MAX_CHOICES = 1024
MAX_OPTION_CHARS = 1024
MAX_DEPTH = 128
MAX_TEXT_CHARS = 1 << 24
# The longest text that a pattern or a markup parser reads, about 64 answers of 4,096 tokens.
MAX_PARSED_CHARS = 1 << 20


class ValueFlow(Enum):
    """The part of a value that a transform needs before its consumers can start."""

    WHOLE = "whole"  # the complete value
    STREAM = "stream"  # each part passes through as it arrives
    ITEMS = "items"  # one complete item: items are passed on one by one


@dataclass(frozen=True, slots=True)
class Transform(ABC):
    """One operation with its options. `op` is its name on the wire."""

    op: ClassVar[str]
    flow: ClassVar[ValueFlow] = ValueFlow.WHOLE
    costly: ClassVar[bool] = False  # may take longer than a few milliseconds for a short text

    def prepare(self) -> None:
        """Compile what `apply` needs. Raises InvalidRequest for what cannot be compiled."""
        return None

    @abstractmethod
    def apply(self, value: Any) -> Any:
        """The transformed value. Raises TransformFailed, with the reason, if there is none."""

    def closed(self, text: str) -> list[Any]:
        """The first items of the result that no later text can change, for an incomplete text.

        A transform whose result is not a list has none.
        """
        return []

    def joined(self, items: Sequence[Any]) -> str:
        """The beginning of the result that no later item can change, for the first `items`.

        The beginning is empty for a transform that does not join items. Raises TransformFailed if
        these items make the transform of the whole list fail.
        """
        return ""


def as_text(value: Any, op: str, limit: int | None = None) -> str:
    """`value`, if it is a string of at most `limit` characters.

    Raises TransformFailed otherwise.
    """
    if not isinstance(value, str):
        raise TransformFailed(f"{op} reads text, but its value is a {type(value).__name__}")
    if limit is not None and len(value) > limit:
        raise TransformFailed(f"{op} reads at most {limit} characters, and there are {len(value)}")
    return value


def refuse(message: str) -> NoReturn:
    """Raise InvalidRequest for a spec."""
    raise InvalidRequest(message, param="transforms")


def package(module: str, what: str, distribution: str) -> ModuleType:
    """A module that may not be installed.

    Raises InvalidRequest if `what` needs it and it is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        refuse(f"{what} needs {distribution}: run `pip install {distribution}`")


def check_text(value: Any, what: str, limit: int = MAX_OPTION_CHARS) -> None:
    """Refuse an option that is not a text of at most `limit` characters."""
    if not isinstance(value, str) or len(value) > limit:
        refuse(f"{what} is a text of at most {limit} characters")


def check_texts(values: Any, what: str, limit: int) -> None:
    """Refuse an option that is not a list of 1 to `limit` texts."""
    if not isinstance(values, tuple) or not 0 < len(values) <= limit:
        refuse(f"{what} is a list of 1 to {limit} texts")
    for value in values:
        check_text(value, f"each of {what}")


_SURROGATE = re.compile("[\ud800-\udfff]")


def check_json(value: Any) -> None:
    """Raise TransformFailed for values that Python's parser accepts but JSON cannot carry."""
    if not _can_travel(value, MAX_DEPTH):
        raise TransformFailed(f"ValueError: {NO_JSON}")


NO_JSON = (
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
