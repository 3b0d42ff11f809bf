"""A stream of server-sent events sends its events, pings while idle, and ends in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import pytest

from weftline.errors import Timeout
from weftline_server.http import event_stream
from weftline_server.http.event_stream import PING, EventStream, sse, sse_or_error

if TYPE_CHECKING:
    from starlette.types import Message


class Reader:
    """The client's side: it reads until `left` is set. While `reading` is clear, sends wait."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.complete = False
        self.reading = asyncio.Event()
        self.reading.set()
        self.left = asyncio.Event()
        self._came: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            return
        await self.reading.wait()
        self.bodies.append(message["body"])
        self._came.put_nowait(message["body"])
        self.complete = not message["more_body"]

    async def until(self, body: bytes) -> None:
        """Return when `body` has arrived."""
        while await self._came.get() != body:
            pass

    async def of(self, events: AsyncGenerator[bytes, None]) -> None:
        scope: dict[str, Any] = {"type": "http"}
        await EventStream(events)(scope, self.receive, self.send)


class Events:
    """A source of two events, the second when `go` is set. It records that it was closed."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.closed = False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            yield sse("part", {"text": "ü\n"}, id="2")
            await self.go.wait()
            yield sse(None, "[DONE]")
        finally:
            self.closed = True


FIRST = 'id: 2\nevent: part\ndata: {"text": "ü\\n"}\n\n'.encode()
LAST = b"data: [DONE]\n\n"


async def test_events_go_out_as_they_come() -> None:
    """Each event is one part of the body, and the body ends with the events."""
    reader, events = Reader(), Events()
    events.go.set()
    await reader.of(events.stream())
    assert reader.bodies == [FIRST, LAST, b""]
    assert reader.complete and events.closed


async def test_a_silent_stream_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """After PING_S without an event, a comment keeps the connection open. Later events
    follow it.
    """
    monkeypatch.setattr(event_stream, "PING_S", 0.01)
    reader, events = Reader(), Events()
    task = asyncio.create_task(reader.of(events.stream()))
    await reader.until(PING)
    events.go.set()
    await task
    assert [body for body in reader.bodies if body != PING] == [FIRST, LAST, b""]


async def test_a_client_that_leaves_ends_the_events() -> None:
    """The generator is closed while it waits, and nothing more is sent."""
    reader, events = Reader(), Events()
    task = asyncio.create_task(reader.of(events.stream()))
    await reader.until(FIRST)
    reader.left.set()
    await task
    assert reader.bodies == [FIRST]
    assert events.closed and not reader.complete


async def test_a_client_that_reads_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is not read within SEND_TIMEOUT_S ends the stream without a last part."""
    monkeypatch.setattr(event_stream, "PING_S", 0.01)
    monkeypatch.setattr(event_stream, "SEND_TIMEOUT_S", 0.02)
    reader, events = Reader(), Events()
    reader.reading.clear()
    await reader.of(events.stream())
    assert reader.bodies == []
    assert events.closed and not reader.complete


async def test_a_failure_is_an_event_and_a_bug_is_raised() -> None:
    """Our errors become the last event, because the status was already sent. A bug breaks the
    stream.
    """

    async def failing(error: Exception) -> AsyncGenerator[bytes, None]:
        yield sse(None, "one")
        raise error

    reader = Reader()
    await reader.of(sse_or_error(failing(Timeout("too late"))))
    assert reader.bodies[0] == b"data: one\n\n"
    assert reader.bodies[1].startswith(b'event: error\ndata: {"error": {"message": "too late"')
    assert reader.complete
    reader = Reader()
    with pytest.raises(ZeroDivisionError):
        await reader.of(sse_or_error(failing(ZeroDivisionError())))
    assert reader.bodies == [b"data: one\n\n"]
    assert not reader.complete
