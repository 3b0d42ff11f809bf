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
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from weftline_engine.api import LACKING, Capability
from weftline_engine.transport import garbage
from weftline_server.commands.server_process import READY
from weftline_server.http.state import state_of
from weftline_server.runtime.service import EngineStatus

log = logging.getLogger("weftline.server")

FLUSH_S = 3  # seconds to send the last responses after the drain
POLL_S = 0.02  # between two looks whether requests are under way
# From the end of listening to the end of the connections: a request is on its way on a new one.
LAST_S = 0.1
HURRY_S = 1.5  # seconds from a second signal to a forced exit


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains for at most `drain_s` seconds before it shuts down."""

    def __init__(
        self,
        url: str,
        config: uvicorn.Config,
        app: FastAPI,
        drain_s: float,
        ready: int | None = None,
        hints: Callable[[str, str], Iterable[str]] | None = None,
    ) -> None:
        """`ready` is where a server tells its parent that it is ready, instead of its operator.
        `hints` are lines for the operator, made of the URL and the name of the first model.
        """
        super().__init__(config)
        self._ready = ready
        self._hints = hints
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
            garbage.after_the_start(garbage.SERVER)
            state = state_of(self._app)
            tenants = len(set(state.config.keys.values()))
            lines = [*lacking(state.service.engines.statuses, several_tenants=tenants > 1)]
            if self._ready is not None:
                _tell(self._ready, lines)
                return
            for line in lines:
                print(f"weftline: {line}", file=sys.stderr)
            print(f"weftline serves on {self._url}", flush=True)
            if state.config.ui:
                print(f"weftline shows its sessions on {self._url}/ui", flush=True)
            if self._hints is not None and (models := state.service.engines.models):
                for line in self._hints(self._url, models[0].name):
                    print(f"  {line}", flush=True)

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
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_s
        state = state_of(self._app)
        if await state.service.lifecycle.hand_over(self._drain_s) and state.others is not None:
            # Requests that were passed on end here.
            while state.others.under_way and loop.time() < until:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        await state.service.lifecycle.drain(max(0.0, until - loop.time()))
        for listening in self.servers:
            listening.close()
        await asyncio.sleep(LAST_S)
        self.should_exit = True

    def _end_now(self) -> None:
        log.warning("second signal: ending without waiting for running calls")
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.create_task(self._hurry())

    async def _hurry(self) -> None:
        """Cancel all running calls, so that each waiting request gets its error as JSON, and
        exit."""
        lifecycle = state_of(self._app).service.lifecycle
        await lifecycle.drain(0.0)
        await lifecycle.leave()  # this process may be ended before it gets there
        self.config.timeout_graceful_shutdown = 1
        self.should_exit = True


def _tell(parent: int, lines: Iterable[str]) -> None:
    """Tell the process that has started this one that it is ready. A pipe takes 64 KiB at once."""
    with open(parent, "wb") as pipe:
        pipe.write(READY + "\n".join(lines).encode())


def lacking(engines: Iterable[EngineStatus], *, several_tenants: bool) -> Iterator[str]:
    """Yield a line for each set of lacking capabilities, however many engines lack them. The null
    engine gets no line: no user misses its capabilities."""
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
