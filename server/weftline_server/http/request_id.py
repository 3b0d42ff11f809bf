"""Gives each request an id, which is in the response, in the logs and in traces."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from weftline_server.http.anthropic.error_forms import is_messages
from weftline_server.session.origin import ORIGIN, Origin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
ANTHROPIC_HEADER = b"request-id"  # of messages, in whose answers clients look for it
# Others could forge lines of a log, or a header.
_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_TRACEPARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class RequestIds:
    """Takes the client's `x-request-id` if it is a plain word, else makes one; returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(HEADER, b"")
        id = given if _ID.fullmatch(given) else secrets.token_hex(16).encode()
        parent = headers.get(b"traceparent", b"")
        known = parent.decode() if _TRACEPARENT.fullmatch(parent) else ""

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                also = ((ANTHROPIC_HEADER, id),) if is_messages(scope["path"]) else ()
                message["headers"] = [*message.get("headers", ()), (HEADER, id), *also]
            await send(message)

        token = ORIGIN.set(Origin(id.decode(), known))
        try:
            await self._app(scope, receive, named)
        finally:
            ORIGIN.reset(token)
