"""Connections of an endpoint are kept, or each request has one of its own."""

from __future__ import annotations

import asyncio

import pytest

from tests.waits import WAIT_S
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig


@pytest.mark.parametrize(("keeps", "connections"), [(True, 1), (False, 3)])
async def test_connections_of_requests_in_turns(keeps: bool, connections: int) -> None:
    """Three requests, one after the other, to a server that would keep its connections."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:  # the client has left
            pass
        finally:
            writer.close()
            await writer.wait_closed()
            closed.release()

    closed = asyncio.Semaphore(0)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = Endpoint(EndpointConfig(url=f"http://127.0.0.1:{port}", keeps=keeps))
    for _ in range(3):
        assert await endpoint.post("/tokenize", {"content": "a"}) == {}
    await endpoint.close()
    server.close()
    for _ in range(connections):
        await asyncio.wait_for(closed.acquire(), timeout=WAIT_S)
    assert accepted == connections
