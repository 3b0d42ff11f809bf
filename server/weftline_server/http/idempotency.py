"""Idempotency keys: a request that comes again with the same key and body is done once.

The second and every later one gets the first one's answer, also while the first still runs; of a
stream all that there is, and the rest as it comes. ASGI middleware, because it must see the whole
answer; what is kept is decided in `answers`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from weftline.errors import InvalidRequest, KeyReused, WeftlineError
from weftline_server.http.answers import Answers, AnswersConfig, Entry
from weftline_server.http.deps import tenant_of
from weftline_server.http.wire import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ROUTES = frozenset({"/v1/session", "/v1/submit"})
MAX_KEY_CHARS = 255


class Idempotency:
    """Keeps the answers of every tenant; requests without a key pass through."""

    def __init__(self, app: ASGIApp, config: AnswersConfig, max_body: int) -> None:
        self._app = app
        self._config = config
        self._max_body = max_body
        self._tenants: dict[str, Answers] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._with_key(key, scope, receive, send)
        except WeftlineError as error:
            await error_response(error)(scope, receive, send)

    async def _with_key(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise InvalidRequest(
                f"an Idempotency-Key has 1 to {MAX_KEY_CHARS} printable ASCII characters",
                param="Idempotency-Key",
            )
        tenant = tenant_of(Request(scope))
        messages, body = await _read(receive, self._max_body)
        if body is None:  # too large, or its client left: the route says so
            await self._app(scope, _after(messages, receive), send)
            return
        answers = self._tenants.setdefault(tenant, Answers(self._config))
        digest = hashlib.sha256(scope["path"].encode() + b"\0" + body).digest()
        while True:
            entry = answers.find(key, digest, time.monotonic())
            if entry is None:
                entry = answers.begin(key, digest, time.monotonic())
                await self._first(answers, key, entry, scope, _after(messages, receive), send)
                return
            if await _given_again(key, entry, receive, send):
                return

    async def _first(
        self,
        answers: Answers,
        key: str,
        entry: Entry,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the request; its client may leave as long as others wait for the same answer."""
        answer = entry.answer
        abandoned = False

        async def until_abandoned() -> Message:
            nonlocal abandoned
            message = await receive()
            if message["type"] == "http.disconnect":
                entry.count(-1)
                await _nobody_waits(entry, self._config.reconnect_s)
                abandoned = True
            return message

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.begin(message["status"], _headers(message))
            else:
                answer.add(message.get("body", b""), last=not message.get("more_body", False))
            await send(message)

        try:
            await self._app(scope, until_abandoned, recorded)
        finally:
            answers.end(key, given_up=abandoned)


def _key(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in ROUTES:
        return None
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            return str(value.decode("latin-1"))
    return None


async def _read(receive: Receive, max_bytes: int) -> tuple[list[Message], bytes | None]:
    """The messages of the body, and the body; None if it is too large or was cut off."""
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
    """`messages` again, and then what comes."""
    waiting = iter(messages)

    async def next_message() -> Message:
        found = next(waiting, None)
        return await receive() if found is None else found

    return next_message


async def _given_again(key: str, entry: Entry, receive: Receive, send: Send) -> bool:
    """Give the first request's answer to a later one; False if the first has ended without one that
    may be given again."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    entry.count(+1)
    giving = asyncio.create_task(_follow(key, entry, send))
    left = asyncio.create_task(gone())
    try:
        await asyncio.wait({giving, left}, return_when=asyncio.FIRST_COMPLETED)
        return giving.result() if giving.done() else True
    finally:
        entry.count(-1)
        for task in (giving, left):
            task.cancel()
        await asyncio.gather(giving, left, return_exceptions=True)


async def _follow(key: str, entry: Entry, send: Send) -> bool:
    """Send what the first request is answered, a stream while it comes."""
    answer = entry.answer
    while not (entry.ended or answer.streams):
        await answer.grown()
    if entry.ended and not entry.kept:
        return False
    if answer.body is None:
        raise KeyReused(
            f"the answer to Idempotency-Key {key[:64]!r} was given, and was too large to be kept",
            param="Idempotency-Key",
        )
    headers = [*answer.headers, (b"idempotency-replayed", b"true")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    sent, ends = 0, False
    while not ends:
        # A stream that was given up, or has become too large to keep, breaks off here too.
        ends = answer.whole or entry.ended or answer.body is None
        part = bytes((answer.body or b"")[sent:])
        sent += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": not ends})
        if not ends and answer.body is not None and sent == len(answer.body):
            await answer.grown()
    return True


async def _nobody_waits(entry: Entry, grace_s: float) -> None:
    """Return when no client has waited for `grace_s` seconds."""
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
