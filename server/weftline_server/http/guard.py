"""What is refused before a route sees it, and what is added to every answer.

A server without keys on a loopback address trusts every program of this machine. A web page is none
of them. A browser sends a page's requests to 127.0.0.1, too, or to a name that the page's owner has
pointed there. So such a server checks Host, Origin and the content type.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from starlette.requests import Request

from weftline.contract.errors import Forbidden, Overloaded, WeftlineError
from weftline_server.config import LOOPBACK
from weftline_server.http.json_bodies import error_response
from weftline_server.http.renderings import MOST, MOST_OF_TENANT
from weftline_server.http.state import tenant_of
from weftline_server.http.unknown_routes import instead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE_BYTES = 1 << 16  # about what a connection holds for a client that reads slowly
# Content types that a page may send anywhere without asking first.
_OF_FORMS = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")


class LoopbackOnly:
    """Refuses requests that a web page has sent to a server without keys."""

    def __init__(self, app: ASGIApp, host: str, origins: Sequence[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset((*LOOPBACK, host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(dict(scope["headers"]), scope["path"])
            except WeftlineError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: dict[bytes, bytes], path: str) -> None:
        host = _name(headers.get(b"host", b"").decode("latin-1"))
        if host not in self._hosts:
            raise Forbidden(
                f"this server has no API key, so it answers only to {', '.join(LOOPBACK)}, not to "
                f"{host[:64]!r}",
                param="Host",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if (
            origin
            and origin not in self._origins
            and _name(origin.partition("://")[2]) not in self._hosts
        ):
            raise Forbidden(
                "this server has no API key, so it answers no web page of another site",
                param="Origin",
            )
        kind = headers.get(b"content-type", b"").lower()
        # A client that sends audio to a route of another server is told so, and nothing is done.
        if kind.startswith(_OF_FORMS) and instead_of(path) is None:
            raise Forbidden(
                "the body of a request is JSON: send 'Content-Type: application/json'",
                param="Content-Type",
            )


def _name(authority: str) -> str:
    """The host of HOST:PORT or [ADDRESS]:PORT."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower()


class Connections:
    """Bounds a tenant's requests under way and the bytes of its answers that are not sent yet, and
    sends these by pieces. Tells clients to leave when the server drains.

    An answer that is no value is rendered whole. It counts from its first message on, before the
    event loop goes on, and is dropped where it has no room. So what is held is never more than the
    bound and one answer, however many requests began together.
    """

    def __init__(self, app: ASGIApp, most: int, draining: Callable[[], bool]) -> None:
        self._app = app
        self._most = most
        self._draining = draining
        self._running: dict[str, int] = {}
        self._unsent: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held, dropped = 0, False

        async def leaving(message: Message) -> None:
            nonlocal held, dropped
            if dropped:
                return
            if message["type"] == "http.response.start":
                size = _size(message)
                if size > PIECE_BYTES and not self._has_room(tenant, size):
                    dropped = True
                    await error_response(self._unread(tenant), scope["path"])(scope, receive, send)
                    return
                held = size
                self._unsent[tenant] += size
                if self._draining():
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            part = 0 if held else len(message.get("body", b""))  # of a stream
            self._unsent[tenant] += part
            try:
                for piece in _pieces(message):
                    await send(piece)
            finally:
                self._unsent[tenant] -= part

        tenant = _tenant(scope)
        error = self._refusal(tenant)
        respond = self._app if error is None else error_response(error, scope["path"])
        self._running[tenant] = self._running.get(tenant, 0) + 1
        try:
            await respond(scope, receive, leaving)
        finally:
            self._unsent[tenant] -= held
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant], self._unsent[tenant]

    def _refusal(self, tenant: str) -> Overloaded | None:
        """Why the tenant may make no further request, if so."""
        running = self._running.get(tenant, 0)
        if running >= self._most:
            return Overloaded(
                f"{running} requests of yours are under way: try again later", retry_after_s=1.0
            )
        return self._unread(tenant) if self._unsent[tenant] >= MOST_OF_TENANT else None

    def _has_room(self, tenant: str, size: int) -> bool:
        """Whether an answer may be held until it is read. The only one of a tenant always may."""
        own = self._unsent[tenant]
        return not own or (own + size <= MOST_OF_TENANT and self._unsent.total() + size <= MOST)

    def _unread(self, tenant: str) -> Overloaded:
        return Overloaded(
            f"{self._unsent[tenant]:,} bytes of answers to you are not read yet: read them, and "
            "try again",
            retry_after_s=1.0,
        )


def _size(start: Message) -> int:
    """The bytes of an answer that is rendered whole; 0 for a stream, which has no more than a part
    at a time."""
    return int(dict(start.get("headers", ())).get(b"content-length", 0))


def _tenant(scope: Scope) -> str:
    """The tenant of a request; "" for all without a valid key."""
    try:
        return tenant_of(Request(scope))
    except WeftlineError:
        return ""


def _pieces(message: Message) -> Iterator[Message]:
    """A part of a body in parts, of which a connection takes the next when it has sent the last."""
    body, more = message.get("body", b""), message.get("more_body", False)
    if len(body) <= PIECE_BYTES:
        yield message
        return
    for at in range(0, len(body), PIECE_BYTES):
        end = at + PIECE_BYTES
        yield {**message, "body": body[at:end], "more_body": more or end < len(body)}
