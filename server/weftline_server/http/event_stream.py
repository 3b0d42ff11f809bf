"""A response of server-sent events, which also pings, and ends when its reader is gone.

By itself, and not by sse-starlette, whose task group, lock and cancel scope took a third of what an
event of a streamed answer cost in the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from weftline.errors import WeftlineError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PING_S = 15.0  # proxies close a connection on which nothing was said for a minute
SEND_TIMEOUT_S = 30.0  # a reader that takes nothing for so long is gone

PING = b": ping\n\n"

to_json = json.JSONEncoder(ensure_ascii=False).encode


def sse(event: str | None, data: Any, id: str | None = None) -> bytes:
    """One server-sent event; `data` becomes JSON unless it is a string, which has one line."""
    body = data if isinstance(data, str) else to_json(data)
    name = "" if event is None else f"event: {event}\n"
    number = "" if id is None else f"id: {id}\n"
    return f"{number}{name}data: {body}\n\n".encode()


async def sse_or_error(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`events`, ended by an `error` event if they raise: the status line is long sent."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except WeftlineError as error:
        yield sse("error", error.to_body())


class EventStream(Response):
    """Sends `events` as they come. They are closed in any case: at their end, when the client has
    gone, when it takes nothing for SEND_TIMEOUT_S."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._sending: float | None = None  # since when an event waits for the client to read
        self._said = time.monotonic()
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        sending = asyncio.create_task(self._send_all(send))
        left = asyncio.create_task(gone())
        try:
            while not sending.done() and not left.done() and not self._stuck():
                await asyncio.wait(
                    {sending, left}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not sending.done() and not left.done():
                    await self._ping(send)
        finally:
            ended = sending.done()
            sending.cancel()
            left.cancel()
            await asyncio.gather(sending, left, return_exceptions=True)
        if ended:
            sending.result()

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._events) as events:
            async for event in events:
                self._sending = self._said = time.monotonic()
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._sending = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        """Say something where nothing was said for a while, and nothing waits to be read."""
        now = time.monotonic()
        if self._sending is None and now - self._said >= PING_S:
            self._said = now
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": PING, "more_body": True})

    def _stuck(self) -> bool:
        since = self._sending
        return since is not None and time.monotonic() - since >= SEND_TIMEOUT_S
