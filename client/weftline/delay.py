"""Simulates a distant server: a proxy on loopback that delays all bytes by half a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from urllib.parse import urlsplit


@contextmanager
def delayed(target: str, rtt_s: float) -> Iterator[str]:
    """The address of a proxy to `target`, which runs inside the block."""
    address = urlsplit(target)
    assert address.hostname is not None and address.port is not None
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        away, to = await asyncio.open_connection(address.hostname, address.port)
        try:
            await asyncio.gather(_carry(reader, to, rtt_s / 2), _carry(away, writer, rtt_s / 2))
        except asyncio.CancelledError:  # the block has ended, and clients may keep connections open
            to.close()
            writer.close()  # raising instead would make asyncio's streams log the cancellation

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        port = server.sockets[0].getsockname()[1]
        started.set_result((f"http://127.0.0.1:{port}", partial(_set, loop, over)))
        await over.wait()
        server.close()

    # `asyncio.run` cancels the remaining tasks. Stopping the loop alone would log warnings.
    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    url, stop = started.result()
    try:
        yield url
    finally:
        stop()
        thread.join()


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Pass on bytes in order, each after the delay. If one side closes, close the other."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)
