"""Idempotency keys: a request that comes again with the same key and body is done once.

The second and every later one gets the first one's answer, also while the first still runs. ASGI
middleware, because it must see the whole answer; what is kept is decided in `answers`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from weftline.errors import InvalidRequest, KeyReused, WeftlineError
from weftline_server.answers import Answer, Answers, AnswersConfig, Entry
from weftline_server.routes.deps import tenant_of
from weftline_server.routes.wire import error_response

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
            if not await _ended(entry, receive):
                return
            if entry.answer is not None:
                await _give_again(key, entry.answer, send)
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
        record = _Record(self._config.max_answer)
        abandoned = False

        async def until_abandoned() -> Message:
            nonlocal abandoned
            message = await receive()
            if message["type"] == "http.disconnect":
                entry.count(-1)
                await _nobody_waits(entry, 0 if record.streams else self._config.reconnect_s)
                abandoned = True
            return message

        async def recorded(message: Message) -> None:
            record.add(message)
            await send(message)

        try:
            await self._app(scope, until_abandoned, recorded)
        finally:
            answers.end(key, None if abandoned else record.answer())


class _Record:
    """An answer on its way to a client, kept as long as it is not too large."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._start: Message | None = None
        self._body: bytearray | None = bytearray()
        self._whole = False

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events, which no client asks for again."""
        headers = dict(self._start["headers"]) if self._start is not None else {}
        return bytes(headers.get(b"content-type", b"")).startswith(b"text/event-stream")

    def add(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._whole = not message.get("more_body", False)
        if self._body is not None:
            self._body += message.get("body", b"")
            if len(self._body) > self._max_bytes:
                self._body = None

    def answer(self) -> Answer | None:
        """The answer, if all of it has been sent."""
        if self._start is None or not self._whole:
            return None
        headers = tuple((bytes(name), bytes(value)) for name, value in self._start["headers"])
        body = None if self._body is None else bytes(self._body)
        return Answer(self._start["status"], headers, body)


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


async def _ended(entry: Entry, receive: Receive) -> bool:
    """Wait until the first request has ended; False if this one's client leaves before."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    entry.count(+1)
    ended = asyncio.create_task(entry.done.wait())
    left = asyncio.create_task(gone())
    try:
        await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        return entry.done.is_set()
    finally:
        entry.count(-1)
        for task in (ended, left):
            task.cancel()
        await asyncio.gather(ended, left, return_exceptions=True)


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


async def _give_again(key: str, answer: Answer, send: Send) -> None:
    if answer.body is None:
        raise KeyReused(
            f"the answer to Idempotency-Key {key[:64]!r} was given, and was too large to be kept",
            param="Idempotency-Key",
        )
    headers = [*answer.headers, (b"idempotency-replayed", b"true")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
