"""Plain data that is made for every call: frozen for mypy, and cheap to make at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A slotted dataclass with keyword fields. The type checker refuses assignments to them.

    `frozen=True` says the same at run time, and makes an object of eight fields take 4.0 µs instead
    of 1.6. A call of a session makes a dozen such objects.
    """
    make: Callable[[type[T]], type[T]] = dataclass(slots=True, kw_only=True)
    return make(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def short_record(cls: type[T]) -> type[T]:
    """A record of few fields, which may be given by their places."""
    make: Callable[[type[T]], type[T]] = dataclass(slots=True, unsafe_hash=True)
    return make(cls)
