"""What every transform is: a frozen set of options, a way to treat a stream, and one function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from weftline.errors import TransformFailed


class Flow(Enum):
    """What a transform needs before it can give its consumers something."""

    WHOLE = "whole"  # the complete value
    STREAM = "stream"  # nothing: each part passes as it comes
    ITEMS = "items"  # the text of one item: items leave one by one


@dataclass(frozen=True, slots=True)
class Transform(ABC):
    """One operation with its options; `op` is its name on the wire."""

    op: ClassVar[str]
    flow: ClassVar[Flow] = Flow.WHOLE

    @abstractmethod
    def apply(self, value: Any) -> Any:
        """The transformed value; TransformFailed says why there is none."""


def as_text(value: Any, op: str) -> str:
    """`value`, which a parser of text needs to be a string."""
    if not isinstance(value, str):
        raise TransformFailed(f"{op} reads text, but its value is a {type(value).__name__}")
    return value
