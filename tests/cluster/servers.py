"""Real servers that share a database: each is a process on a port of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx2

from tests.ports import free_port

START_S = 60.0
LEASE_S = 2.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "weftline_server.commands.serve",
        "weftline_server.cli",
        "weftline_server.cluster.member_wiring",
    ]
)
POISON = "poison"  # a variable of this name kills the server that restores it
NULL = ("--engine", "null")
ENGINE_KEY = "a key of enough characters"


def _serve(arguments: list[str], log: str, poisoned: bool, ahead_s: float) -> None:
    if poisoned:
        _poison()
    if ahead_s:
        right = time.time
        time.time = lambda: right() + ahead_s
    _main(["serve", *arguments], log)


def _main(arguments: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["WEFTLINE_ENGINE_KEY"] = ENGINE_KEY
    from weftline_server.cli import main

    raise SystemExit(main(arguments))


def _poison() -> None:
    """End this process as a fault in a library would, when it restores a certain session."""
    from weftline_server.session import session

    handle = session.ServerSession.handle

    def deadly(self, event, draft=None):
        actions = handle(self, event, draft)
        if POISON in self.variables and type(event).__name__ == "SessionResumed":
            os.kill(os.getpid(), signal.SIGKILL)
        return actions

    session.ServerSession.handle = deadly


class ClusterServer:
    """One of several servers, with an `engine` of its own."""

    def __init__(
        self,
        store: str,
        log: Path,
        *arguments: str,
        port: int = 0,
        poisoned: bool = False,
        engine: tuple[str, ...] = NULL,
        ahead_s: float = 0.0,
    ) -> None:
        self._ahead_s = ahead_s
        self.log = log
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = [*engine, "--port", str(self.port), "--store", store]
        self._arguments = [*own, "--lease-s", str(LEASE_S), "--no-ui", *arguments]
        self._poisoned = poisoned
        self._process: ForkServerProcess | None = None
        self.http = httpx2.AsyncClient(base_url=self.url, timeout=60)

    @property
    def pid(self) -> int:
        """Of the server, which must run."""
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        await self.begin()
        deadline = time.monotonic() + START_S
        async with httpx2.AsyncClient(base_url=self.url) as http:
            while True:
                assert self.is_alive, self.log.read_text()
                assert time.monotonic() < deadline, "the server did not start in time"
                try:
                    if (await http.get("/health/ready")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.02)

    async def begin(self) -> None:
        """Start it."""
        assert self._process is None
        arguments = (self._arguments, str(self.log), self._poisoned, self._ahead_s)
        self._process = _context.Process(target=_serve, args=arguments)
        self._process.start()

    async def ended(self) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        await asyncio.to_thread(process.join)
        code = process.exitcode
        process.close()
        assert code is not None
        return code

    async def kill(self) -> None:
        """Kill it with signal 9, if it runs."""
        if self._process is not None:
            self._process.kill()
            await self.ended()

    async def stop(self) -> int:
        """End it with SIGTERM. Return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await self.ended()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class EngineProcess:
    """An engine on the servers that listen for it at these ports of this machine."""

    def __init__(self, name: str, ports: list[int], log: Path, *arguments: str) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        joining = ["join", servers, *NULL, "--name", name, "--node", name, *arguments]
        self._arguments = (joining, str(log))
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        self._process = _context.Process(target=_main, args=self._arguments)
        self._process.start()

    def kill(self) -> None:
        """Kill it with signal 9, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            process.close()
