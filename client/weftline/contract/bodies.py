"""How the objects of a JSON body are read: pydantic's configuration of their dataclasses."""

from __future__ import annotations

from typing import Any, ClassVar


class StrictBody:
    """An object whose unknown fields are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


class LooseBody:
    """An object of another API, whose unknown fields are passed over."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore", "allow_inf_nan": False}
