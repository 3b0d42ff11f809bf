"""A connection is cut again and again, and the SDK's streams still come whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from weftline import AsyncClient, Client, semantic_function
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.errors import ConnectionFailed

TEXT = "one two three four five six seven eight nine ten eleven twelve"


class CuttingRelay:
    """A relay before a server. It resets its first connections after the given counts of events."""

    def __init__(self, url: str, events: list[int]) -> None:
        self._to = urlsplit(url)
        self.left = events
        self.loop = asyncio.new_event_loop()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.loop.run_until_complete(start).sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._to.hostname is not None
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        sending = asyncio.create_task(self._send(reader, back))
        left = self.left.pop(0) if self.left else 1000
        with suppress(OSError):
            while left >= 0 and (piece := await there.read(1 << 16)):
                parts = piece.split(b"event: ")
                writer.write(b"event: ".join(parts[: left + 1]))
                left -= len(parts) - 1
                await writer.drain()
        sending.cancel()
        for side in (writer, back):
            side.transport.abort()

    async def close(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                back.write(piece)
                await back.drain()


@pytest.fixture
def relay(slow_url: str, request: pytest.FixtureRequest) -> Iterator[CuttingRelay]:
    relay = CuttingRelay(slow_url, request.param)
    thread = threading.Thread(target=relay.loop.run_forever)
    thread.start()
    yield relay
    asyncio.run_coroutine_threadsafe(relay.close(), relay.loop).result(10)
    relay.loop.call_soon_threadsafe(relay.loop.stop)
    thread.join()
    relay.loop.close()


def _shout(words, said):
    """{{input:words}}{{output:said}}"""


@pytest.mark.parametrize("relay", [[4, 3, 1, 2]], indirect=True)
def test_a_variable_comes_whole(relay: CuttingRelay) -> None:
    """After each cut the client goes on from the last part that it saw, while the call runs on.
    Every word comes once, in its place, and nothing is generated twice.
    """
    with Client(relay.url) as client, client.session() as session:
        said = semantic_function(_shout)(TEXT)
        assert "".join(said.stream()) == TEXT == said.get()
        (call,) = session.graph()["calls"]
    assert (call["state"], len(call["steps"]), relay.left) == ("done", 1, [])


OUT = Placeholder(name="x", in_out=InOut.OUT, semantic_var_id="x")
RUN = Call(name="run", prompt=(Segment(text=TEXT), Segment(output="x")), placeholders=(OUT,))


@pytest.mark.parametrize("relay", [[3, 6, 4, 9]], indirect=True)
async def test_a_whole_run_comes_whole(relay: CuttingRelay) -> None:
    """A run in one request is requested again with its key. Its events come again from the first
    one, and continue while it is generated. The third connection brings nothing new and does no
    harm.
    """
    graphs: list[Any] = []
    async with AsyncClient(relay.url) as client:
        said = [text async for text in client.stream([RUN], "x", on_graph=graphs.append)]
    assert ("".join(said), relay.left) == (TEXT, [])
    assert [call["state"] for call in graphs[0]["calls"]] == ["done"]


@pytest.mark.parametrize("relay", [[3, 3, 3, 3]], indirect=True)
def test_a_run_that_gets_no_further_is_given_up(relay: CuttingRelay) -> None:
    """After three times the same three events, the error follows the text so far."""
    said: list[str] = []
    with Client(relay.url) as client, pytest.raises(ConnectionFailed) as failed:
        for text in client.stream([RUN], "x"):
            said.append(text)
    assert said and TEXT.startswith("".join(said))
    assert failed.value.began and relay.left == [3]
