"""A network of a given round trip, between a client and a server of the same machine.

    python -m bench.harness.relay --to 127.0.0.1:8000 --low-ms 200 --high-ms 300

Prints its own port. What arrives in either direction is passed on half a round trip later, each
piece with a delay drawn anew, never overtaking the one before: the paper adds 200 to 300 ms to each
of the client's calls. It ends at the end of standard input, which is when its starter ends.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable
from contextlib import suppress

PIECE = 1 << 16


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way: Callable[[], float]
) -> None:
    """Copy until the end, late; an end that is reached travels as late as everything."""
    loop = asyncio.get_running_loop()
    line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)

    async def deliver() -> None:
        while True:
            due, piece = await line.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                writer.write_eof()  # the other direction may go on
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
    except OSError:  # either side is gone: so is the other
        delivering.cancel()
        writer.transport.abort()


async def relay(host: str, port: int, low_s: float, high_s: float) -> asyncio.Server:
    """Listen on a free port of this machine and pass everything on to `host`:`port`.

    `low_s` and `high_s` bound the seconds of a round trip.
    """
    rng = random.Random(0)

    def one_way() -> float:
        return rng.uniform(low_s, high_s) / 2

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        # At the relay's own end its connections are cancelled, which is nothing to report.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, back, one_way), _pump(there, writer, one_way))
        for end in (back, writer):
            end.close()

    return await asyncio.start_server(connected, "127.0.0.1", 0)


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--low-ms", type=float, required=True)
    parser.add_argument("--high-ms", type=float, required=True)
    args = parser.parse_args()
    host, _, port = args.to.rpartition(":")
    server = await relay(host, int(port), args.low_ms / 1e3, args.high_ms / 1e3)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
