"""The HTTP server of `weftline serve`: it prints when it is ready, and drains before it ends.

The first SIGTERM or SIGINT starts the drain: `GET /health/ready` responds 503, new work is refused,
and running calls may finish. Then connections are closed. A second signal ends the server at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from weftline_engine import garbage
from weftline_engine.api import LACKING, Capability
from weftline_server.http.state import state_of
from weftline_server.runtime.service import EngineStatus

log = logging.getLogger("weftline.server")

FLUSH_S = 3  # seconds to send the last responses after the drain
HURRY_S = 1.5  # seconds from a second signal to a forced exit


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains for at most `drain_s` seconds before it shuts down."""

    def __init__(self, url: str, config: uvicorn.Config, app: FastAPI, drain_s: float) -> None:
        super().__init__(config)
        self._url = url
        self._app = app
        self._drain_s = drain_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            garbage.after_the_start()
            state = state_of(self._app)
            tenants = len(set(state.config.keys.values()))
            for line in lacking(state.service.engines.statuses, several_tenants=tenants > 1):
                print(f"weftline: {line}", file=sys.stderr)
            print(f"weftline serves on {self._url}", flush=True)
            if state.config.ui:
                print(f"weftline shows its sessions on {self._url}/ui", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second. It may run between any two instructions."""
        self._signals += 1
        if sig == signal.SIGINT:
            self._captured_signals.append(sig)  # the command line reports the interrupt
        if self._loop is None or not self.started:
            self.should_exit = True
        elif self._signals == 1:
            self._loop.call_soon_threadsafe(self.drain)
        else:
            self._loop.call_soon_threadsafe(self._end_now)
            last = threading.Timer(HURRY_S, os._exit, (1,))
            last.daemon = True
            last.start()

    def on_stdin(self) -> None:
        """Drain at the end of standard input. Ignore its content."""
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin)
            self.drain()

    def drain(self) -> None:
        """Take no new work from now on, and exit when the running calls have ended."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await state_of(self._app).service.lifecycle.drain(self._drain_s)
        self.should_exit = True

    def _end_now(self) -> None:
        log.warning("second signal: ending without waiting for running calls")
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.create_task(self._hurry())

    async def _hurry(self) -> None:
        """Cancel what runs, so that each waiting request gets its error as JSON, and exit."""
        await state_of(self._app).service.lifecycle.drain(0.0)
        self.config.timeout_graceful_shutdown = 1
        self.should_exit = True


def lacking(engines: Iterable[EngineStatus], *, several_tenants: bool) -> Iterator[str]:
    """Yield a line for each set of lacking capabilities, however many engines lack it. The null
    engine has none: what it lacks, no user misses."""
    names: dict[tuple[str, ...], list[str]] = {}
    for engine in engines:
        if several_tenants and LACKING[Capability.SALT] in engine.lacks:
            yield (
                f"engine {engine.name} is shared by several tenants and does not part their "
                "caches: the time of an answer may tell a tenant of another's prompts"
            )
        if engine.lacks and engine.model != "null":
            names.setdefault(engine.lacks, []).append(engine.name)
    for lacks, some in names.items():
        what = f"engine {some[0]}" if len(some) == 1 else f"each of {', '.join(some)}"
        yield f"{what} " + "; ".join(lacks)
