"""A response of server-sent events, which pings while it is idle and ends when its reader leaves.

The response does not use sse-starlette, whose task group, lock and cancel scope took a third of the
time that the server spends on an event of a streamed response.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from weftline.contract.errors import WeftlineError
from weftline_server.http.json_bodies import disconnect

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PING_S = 15.0  # proxies close a connection that was idle for a minute
SEND_TIMEOUT_S = 30.0  # a reader that reads nothing for this long counts as gone

PING = b": ping\n\n"

to_json = json.JSONEncoder(ensure_ascii=False).encode


def sse(event: str | None, data: Any, id: str | None = None) -> bytes:
    """One server-sent event. `data` becomes JSON, unless it is a string of a single line."""
    body = data if isinstance(data, str) else to_json(data)
    name = "" if event is None else f"event: {event}\n"
    number = "" if id is None else f"id: {id}\n"
    return f"{number}{name}data: {body}\n\n".encode()


async def sse_or_error(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`events`, ended by an `error` event if they raise, as the status has been sent by then."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except WeftlineError as error:
        yield sse("error", error.to_body())


class EventStream(Response):
    """Sends `events` as they arrive.

    The stream closes the events at their end, when the client leaves, and when the client reads
    nothing for SEND_TIMEOUT_S.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._sending: float | None = None  # the time since when an event waits to be read
        self._sent = time.monotonic()  # when the last event or ping was sent
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        left = asyncio.create_task(disconnect(receive))
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
                self._sending = self._sent = time.monotonic()
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._sending = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        """Send a ping if nothing was sent for PING_S and nothing waits to be read."""
        now = time.monotonic()
        if self._sending is None and now - self._sent >= PING_S:
            self._sent = now
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": PING, "more_body": True})

    def _stuck(self) -> bool:
        since = self._sending
        return since is not None and time.monotonic() - since >= SEND_TIMEOUT_S


class JsonStream(EventStream):
    """Sends one JSON document in parts, as they are made. It has no pings."""

    media_type = "application/json"

    def __init__(
        self,
        texts: AsyncGenerator[str, None],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(_encoded(texts), headers)

    async def _ping(self, send: Send) -> None:
        """Nothing: what is not in the document may not be sent."""


async def _encoded(texts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(texts):
        async for text in texts:
            yield text.encode()
