"""How a route says that another server may answer its request, before it has sent anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.responses import Response

from weftline_server.http.json_bodies import error_response
from weftline_server.journal.fence import SessionMoved
from weftline_server.runtime.service import Draining, NotHere

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

Elsewhere = NotHere | SessionMoved | Draining  # what another server may answer

MISS = "weftline.miss"  # where a route says what it misses


@dataclass(slots=True)
class RelayAttempt:
    """A request as it is handled here: the messages of its body, why another server may have to
    answer it, and whether the records of its session were read for it.
    """

    messages: list[Message] = field(default_factory=list)
    missed: Elsewhere | None = None
    was_viewed: bool = False


class Missed(Response):
    """No response: it tells the relay that another server may answer the request."""

    def __init__(self, error: Elsewhere) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempt = scope.get(MISS)
        if attempt is None:  # no other server may have it
            await error_response(self._error, scope["path"])(scope, receive, send)
        else:
            attempt.missed = self._error
