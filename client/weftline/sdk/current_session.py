"""The session of the innermost `with` block, to which calls of semantic functions are added."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol


class CurrentSession(Protocol):
    """The part of a session that functions use. The session's own file gives the exact types."""

    def add_call(self, function: Any, given: Mapping[str, Any]) -> list[Any]:
        """Add a call of a semantic function. Returns the variables of its outputs."""

    def client(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Add a step that the client computes. Returns the variable of its result."""


CURRENT: ContextVar[CurrentSession | None] = ContextVar("weftline_session", default=None)


def current_session() -> CurrentSession:
    """The session of the innermost `with` block. Raises RuntimeError outside of any."""
    session = CURRENT.get()
    if session is None:
        raise RuntimeError(
            "semantic functions are called inside a session: "
            "`with Client() as client, client.session():`"
        )
    return session
