"""Objects of a request's body that say in the field `type` what they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Discriminator

_NONE: Mapping[str, str] = MappingProxyType({})
OTHER = "Other"  # the tag of an object of a type that is not served


def type_of(value: Any) -> str | None:
    """The `type` of a body's object, None for what has none."""
    found = value.get("type") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def by_type(
    tags: Mapping[str | None, str],
    *,
    text: str = OTHER,
    untyped: Mapping[str, str] = MappingProxyType({}),
) -> Discriminator:
    """Chooses among tagged classes by an object's type. A value that is a text has the tag `text`,
    and one without a type that of the first field of `untyped` that it has.

    The choice is Python code. While it runs, other threads can: pydantic alone holds its lock for
    the whole body, which took 0.8 s for 200,000 messages.
    """

    def tag(value: Any) -> str:
        if isinstance(value, str):
            return text
        kind = type_of(value)
        if kind is None and isinstance(value, dict):
            return next((untyped[name] for name in untyped if name in value), tags.get(None, OTHER))
        return tags.get(kind, OTHER)

    return Discriminator(tag)
