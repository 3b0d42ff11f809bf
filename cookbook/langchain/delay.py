"""A server that is far away: a proxy on loopback that holds all bytes back by half a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from urllib.parse import urlsplit


@contextmanager
def delayed(target: str, rtt_s: float) -> Iterator[str]:
    """The address of a proxy to `target` that runs inside the block."""
    address = urlsplit(target)
    assert address.hostname is not None and address.port is not None
    loop, listens, ports = asyncio.new_event_loop(), Event(), list[int]()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        away, to = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(_carry(reader, to, rtt_s / 2), _carry(away, writer, rtt_s / 2))

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        listens.set()

    def work() -> None:
        loop.create_task(serve())
        loop.run_forever()

    Thread(target=work, daemon=True).start()
    listens.wait()
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Bytes in their order, each after the delay; a closed end closes the other."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)
