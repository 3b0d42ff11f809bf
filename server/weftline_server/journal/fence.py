"""What a server meets when another one has taken its sessions over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weftline.contract.errors import EngineUnavailable

if TYPE_CHECKING:
    from weftline_server.session.session import ServerSession

AGAIN_S = 1.0  # when to ask again


class Fenced(Exception):
    """Another server has taken over: nothing of this write was made, and nothing will be."""


class SessionMoved(EngineUnavailable):
    """The session goes on at another server, where the same request finds it. Clients know this
    error by the name of its base class. `session` is None where it may be any.
    """

    def __init__(self, session: ServerSession | None = None) -> None:
        super().__init__(
            "another server goes on with the session: ask again", retry_after_s=AGAIN_S
        )
        self.session = session

    @property
    def type(self) -> str:
        return EngineUnavailable.__name__
