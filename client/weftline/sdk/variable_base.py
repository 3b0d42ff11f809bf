"""The variables of a session, as the client holds them: an id, and no value."""

from __future__ import annotations

from typing import TypeVar


class VariableBase:
    """A named value of a session. The value is in the server, and is read with `get`."""

    def __init__(self, owner: object, id: str) -> None:
        self.id = id
        self.owner: object = owner  # its session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __str__(self) -> str:
        raise TypeError(
            f"variable {self.id} has no text here: pass it to a semantic function as it is, "
            "or call .get() first"
        )

    def __format__(self, spec: str) -> str:
        return str(self)


V = TypeVar("V", bound=VariableBase)
