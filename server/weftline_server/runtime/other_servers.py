"""What the runtime asks of the code that knows several servers of one store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from weftline_server.session.session import ServerSession

if TYPE_CHECKING:
    from weftline_server.runtime.driver import Driver


class Membership(Protocol):
    """This server's place among the servers of its store."""

    chosen: set[tuple[str, str]]  # tenants and ids of clients that this server may open

    @property
    def is_away(self) -> bool:
        """Whether the database does not answer."""

    @property
    def is_retired(self) -> bool:
        """Whether this server opens no more sessions."""

    async def join(self, models: str) -> None:
        """Become a server of the store, which serves these models."""

    def run(self, host: Driver) -> None:
        """Keep the place from now on, and take over what dead servers leave."""

    async def leave(self) -> None:
        """Let the other servers adopt what is left here."""


class SessionHandover(Protocol):
    """How this server gives its sessions to the others."""

    async def begin(self) -> bool:
        """Open no more sessions. False where no other server goes on."""

    def owns(self, session: ServerSession) -> bool:
        """Whether the store has the session as this server's."""

    async def give(self, sessions: Sequence[ServerSession], host: Driver) -> None:
        """Let other servers go on with these sessions."""
