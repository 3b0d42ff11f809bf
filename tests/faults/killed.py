"""A real server process that is killed and started again, many times, on one port and one store.

A fork server has imported the program once, so each start takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx2

START_S = 60.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["weftline_server.commands.serve", "weftline_server.cli"])


def _serve(arguments: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    from weftline_server.cli import main

    raise SystemExit(main(["serve", *arguments]))


class Killed:
    """A server on the null engine, with a store in `folder`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.store = folder / "sessions.db"
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # A store without an engine, so that what it does may be counted, is in the configuration.
        own = ["--engine", "null", "--port", str(self.port), "--store", str(self.store)]
        self._arguments = [*own, *arguments]
        self._process: ForkServerProcess | None = None

    @property
    def pid(self) -> int:
        """Of the server, which must run."""
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    async def start(self, *arguments: str) -> None:
        """Start it, with these arguments more, and wait until it is ready."""
        assert self._process is None
        words = [*self._arguments, *arguments]
        self._process = _context.Process(target=_serve, args=(words, str(self.log)))
        self._process.start()
        deadline = time.monotonic() + START_S
        async with httpx2.AsyncClient(base_url=self.url) as http:
            while True:
                assert self._process.is_alive(), self.log.read_text()
                assert time.monotonic() < deadline, "the server did not start in time"
                try:
                    if (await http.get("/health/ready")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """Kill it with signal 9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.join)
            process.close()

    async def stop(self) -> int:
        """End it with SIGTERM. Return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        await asyncio.to_thread(process.join)
        code = process.exitcode
        process.close()
        assert code is not None
        return code
