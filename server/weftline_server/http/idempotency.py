"""Idempotency keys: a request that is repeated with the same key and body is done only once.

Every repetition gets the first request's response, even while the first still runs. Of a stream it
gets the part that was sent, and the rest as it is generated. This is ASGI middleware because it
must see the whole response. `responses` decides which responses are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from weftline.contract.errors import InvalidRequest, KeyReused, WeftlineError
from weftline_server.http.json_bodies import disconnect, error_response
from weftline_server.http.kept_responses import Entry, Responses, ResponsesConfig
from weftline_server.http.state import tenant_of
from weftline_server.journal.journal import Key

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ROUTES = frozenset({"/v1/session", "/v1/submit"})
MAX_KEY_CHARS = 255
KEY = "weftline.key"  # where the routes find the key of a request


class Idempotency:
    """Answers repeated requests of every tenant; requests without a key pass through."""

    def __init__(self, app: ASGIApp, config: ResponsesConfig, max_body: int) -> None:
        self._app = app
        self._config = config
        self._max_body = max_body
        self._tenants: dict[str, Responses] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._with_key(key, scope, receive, send)
        except WeftlineError as error:
            await error_response(error, scope["path"])(scope, receive, send)

    async def _with_key(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise InvalidRequest(
                f"an Idempotency-Key has 1 to {MAX_KEY_CHARS} printable ASCII characters",
                param="Idempotency-Key",
            )
        tenant = tenant_of(Request(scope))
        messages, body = await _read(receive, self._max_body)
        if body is None:  # it is too large or was cut off, which the route reports
            await self._app(scope, _after(messages, receive), send)
            return
        responses = self._tenants.setdefault(tenant, Responses(self._config))
        digest = hashlib.sha256(scope["path"].encode() + b"\0" + body).digest()
        scope[KEY] = Key(tenant, key, digest)  # a submit is found by it after a restart
        while True:
            entry = responses.find(key, digest, time.monotonic())
            if entry is None:
                entry = responses.begin(key, digest, time.monotonic())
                await self._first(responses, key, entry, scope, _after(messages, receive), send)
                return
            if await _repeat(key, entry, receive, send):
                return

    async def _first(
        self,
        responses: Responses,
        key: str,
        entry: Entry,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the request to its end, as long as any client waits for its response."""
        response = entry.response
        abandoned = False

        async def until_abandoned() -> Message:
            nonlocal abandoned
            message = await receive()
            if message["type"] == "http.disconnect":
                entry.count(-1)
                await _abandoned(entry, self._config.reconnect_s)
                abandoned = True
            return message

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                response.begin(message["status"], _headers(message))
            else:
                response.add(message.get("body", b""), last=not message.get("more_body", False))
            await send(message)

        try:
            await self._app(scope, until_abandoned, recorded)
        finally:
            responses.end(key, abandoned=abandoned)


def key_of(request: Request) -> Key | None:
    """The idempotency key of a request, with its digest."""
    found = request.scope.get(KEY)
    return found if isinstance(found, Key) else None


def _key(scope: Scope) -> str | None:
    """The request's idempotency key; None if it has none or its route takes none."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in ROUTES:
        return None
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            return str(value.decode("latin-1"))
    return None


async def _read(receive: Receive, max_bytes: int) -> tuple[list[Message], bytes | None]:
    """The ASGI messages of the body, and the body; None if it is too large or was cut off."""
    messages, size = [], 0
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return messages, None
        size += len(message.get("body", b""))
        if size > max_bytes:
            return messages, None
        if not message.get("more_body", False):
            return messages, b"".join(m.get("body", b"") for m in messages)


def _after(messages: list[Message], receive: Receive) -> Receive:
    """A `receive` that gives `messages` first, then the messages of `receive`."""
    waiting = iter(messages)

    async def next_message() -> Message:
        found = next(waiting, None)
        return await receive() if found is None else found

    return next_message


async def _repeat(key: str, entry: Entry, receive: Receive, send: Send) -> bool:
    """Send the first request's response to a repetition; False if that response was not kept."""
    entry.count(+1)
    sending = asyncio.create_task(_follow(key, entry, send))
    left = asyncio.create_task(disconnect(receive))
    try:
        await asyncio.wait({sending, left}, return_when=asyncio.FIRST_COMPLETED)
        return sending.result() if sending.done() else True
    finally:
        entry.count(-1)
        for task in (sending, left):
            task.cancel()
        await asyncio.gather(sending, left, return_exceptions=True)


async def _follow(key: str, entry: Entry, send: Send) -> bool:
    """Send the first response, a stream while it is generated; False if it was not kept."""
    response = entry.response
    while not (entry.ended or response.streams):
        await response.grown()
    if entry.ended and not entry.kept:
        return False
    if response.body is None:
        raise KeyReused(
            f"the response to Idempotency-Key {key[:64]!r} was sent, but was too large to be kept: "
            "use a new key",
            param="Idempotency-Key",
        )
    headers = [*response.headers, (b"idempotency-replayed", b"true")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    sent, ends = 0, False
    while not ends:
        # A stream that was abandoned, or has become too large to keep, breaks off here too.
        ends = response.whole or entry.ended or response.body is None
        part = bytes((response.body or b"")[sent:])
        sent += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": not ends})
        if not ends and response.body is not None and sent == len(response.body):
            await response.grown()
    return True


async def _abandoned(entry: Entry, grace_s: float) -> None:
    """Return once no client has waited for the response for `grace_s` seconds."""
    while True:
        entry.changed.clear()
        if entry.clients > 0:
            await entry.changed.wait()
            continue
        try:
            async with asyncio.timeout(grace_s):
                await entry.changed.wait()
        except TimeoutError:
            return


def _headers(message: Message) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((bytes(name), bytes(value)) for name, value in message["headers"])
