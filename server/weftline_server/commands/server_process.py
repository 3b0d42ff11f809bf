"""One of several servers as a process: its parent gives it its sockets, and hears when it is ready.

Each server has two sockets: its own one on the common port, among which the kernel spreads
connections, and one on a private port, where the other servers reach it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger("weftline.supervisor")

LAST_S = 5.0  # from the end of a drain to the end of its process; then it is killed
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 10.0  # before a process that did not start is started again
READY = b"ready\n"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GivenSockets:
    """What a server gets of its parent, as file descriptors: its listening sockets, and a pipe to
    which it writes READY and what an operator should know of its engines.
    """

    public: int
    private: int
    ready: int

    @staticmethod
    def read(text: str) -> GivenSockets:
        return GivenSockets(*map(int, text.split(",")))

    def __str__(self) -> str:
        return f"{self.public},{self.private},{self.ready}"


@dataclass(slots=True)
class ServerProcess:
    """A server: its process, its private port, the address at which engines join it, if they do,
    and what it said when it was ready; None if it has ended before.
    """

    process: asyncio.subprocess.Process
    port: int
    gate: Address | None
    said: list[str] | None = None

    def tell_to_end(self) -> None:
        """SIGTERM, if it runs."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()

    async def end(self, drain_s: float) -> None:
        """Let it drain, and kill it where it does not end, or serves nobody yet."""
        if self.said is None and self.process.returncode is None:
            self.process.kill()
        self.tell_to_end()
        try:
            async with asyncio.timeout(drain_s + LAST_S):
                await self.process.wait()
        except TimeoutError:
            log.error("a server did not end in time, and is killed")
            self.process.kill()
            await self.process.wait()


async def started(
    words: Sequence[str],
    public: socket.socket,
    private: socket.socket,
    address: str,
    gate: Address | None,
    more: Mapping[str, str],
    *,
    heard: bool = False,
) -> tuple[ServerProcess, int]:
    """Start a server with `words` of the command line and with `more` environment variables.

    Return it, and the pipe for `until_ready`. What it says to its operator is `heard` where the
    parent reads its standard error.
    """
    ready, writes = os.pipe()
    given = GivenSockets(public.fileno(), private.fileno(), writes)
    own = ["--as-server", str(given), "--address", address]
    if gate is not None:
        own += ["--engines-on", authority(*gate)]
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "weftline_server",
            "serve",
            *words,
            *own,
            "--until-stdin-closes",  # it ends when this process does
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE if heard else None,
            pass_fds=(given.public, given.private, given.ready),
            env={**os.environ, **more},
            start_new_session=True,  # the terminal's signals come to the parent alone
        )
    finally:
        os.close(writes)
    return ServerProcess(process, private.getsockname()[1], gate), ready


async def until_ready(found: ServerProcess, ready: int) -> bool:
    """Wait until the server is ready. False if it has ended before."""
    said = await asyncio.to_thread(_read_all, ready)
    if said.startswith(READY):
        found.said = said.decode().splitlines()[1:]
        return True
    await found.process.wait()
    return False


def pause_s(failures: int) -> float:
    """Seconds before a process is started that has ended `failures` times before it was ready."""
    return min(FIRST_PAUSE_S * 2.0 ** (failures - 1), MOST_PAUSE_S) if failures else 0.0


def listening(host: str, port: int, *, shared: bool) -> socket.socket:
    """A bound socket. The server that gets it listens on it when it is ready. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without an explicit protocol asyncio does not set TCP_NODELAY (see `serve`).
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as pipe:
        return pipe.read()
