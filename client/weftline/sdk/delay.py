"""A delaying proxy on loopback: it adds half a round trip to all bytes in each direction.

    python -m weftline.delay --to http://127.0.0.1:8600 --rtt-ms 250 --jitter 0.2

prints the address of such a proxy, which runs until standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from urllib.parse import urlsplit

PIECE = 1 << 16  # bytes that are read at a time
PIECES = 1024  # pieces held in each direction; the proxy stops reading when there are more


@contextmanager
def delayed(target: str, rtt_s: float, jitter: float = 0.0) -> Iterator[str]:
    """The address of a proxy to `target`, an http URL with a port, that runs inside the block.

    `rtt_s` is the round trip in seconds. Each piece of data arrives half of it later, plus or minus
    a random part of it, at most the share `jitter`. Pieces stay in order.
    """
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        server = await proxy(target, rtt_s, jitter)
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        port = server.sockets[0].getsockname()[1]
        stop = partial(loop.call_soon_threadsafe, over.set)
        started.set_result((f"http://127.0.0.1:{port}", stop))
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


async def proxy(target: str, rtt_s: float, jitter: float = 0.0) -> asyncio.Server:
    """Listen on a free port of this machine and pass everything on, as `delayed` says."""
    address = urlsplit(target)
    assert address.hostname is not None and address.port is not None
    host, port, rng = address.hostname, address.port, random.Random(0)

    def one_way() -> float:
        return rtt_s / 2 * rng.uniform(1 - jitter, 1 + jitter)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            away, to = await asyncio.open_connection(host, port)
        except OSError:  # the target has ended, so this connection ends too
            writer.close()
            return
        # Leaving the block cancels open connections; asyncio would report that as an error.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, to, one_way), _pump(away, writer, one_way))
        to.close()
        writer.close()

    return await asyncio.start_server(connected, "127.0.0.1", 0)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way: Callable[[], float]
) -> None:
    """Pass on bytes in order, each after the delay. If one side closes, close the other."""
    loop = asyncio.get_running_loop()
    line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)

    async def deliver() -> None:
        while True:
            due, piece = await line.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                writer.write_eof()  # the other direction may still send
                return
            writer.write(piece)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    last = 0.0
    try:
        while piece := await reader.read(PIECE):
            last = max(last, loop.time() + one_way())
            await line.put((last, piece))
        await line.put((max(last, loop.time() + one_way()), b""))
        await delivering
    except OSError:  # one side has closed, so the other one is closed too
        delivering.cancel()
        writer.transport.abort()


async def _serve(target: str, rtt_s: float, jitter: float) -> None:
    server = await proxy(target, rtt_s, jitter)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    """Serve until standard input ends, which is when the process that started this one ends."""
    parser = argparse.ArgumentParser(
        prog="python -m weftline.delay", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--to", required=True, metavar="URL", help="URL of the server")
    parser.add_argument(
        "--rtt-ms", type=float, required=True, metavar="MS", help="added round trip"
    )
    parser.add_argument(
        "--jitter", type=float, default=0.0, metavar="SHARE", help="random part of the round trip"
    )
    args = parser.parse_args()
    asyncio.run(_serve(args.to, args.rtt_ms / 1e3, args.jitter))
