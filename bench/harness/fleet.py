"""The servers that are up, kept from workload to workload, and the proxies that delay them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Self

from bench.harness.servers import Server, ServerSpec, Setup, phases, running

JITTER = 0.2  # of the mean round trip, to either side: 250 ms are 200 to 300, as in the paper

# A server is at rest when it has used a tenth of a core over so long. vLLM's threads spin on
# for a second after its last answer: on two cores, half of what the next system needs.
REST_S, RESTING = 0.25, 0.1
LONGEST_S = 5.0


class Fleet:
    """Starts what a workload needs and has not yet; another setup stops all that is there."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say
        self._stack = AsyncExitStack()
        self._setup: Setup | None = None
        self._servers: dict[ServerSpec, Server] = {}
        self._addresses: dict[tuple[ServerSpec, int], str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def need(self, setup: Setup, specs: dict[str, ServerSpec]) -> None:
        """Have the servers of `specs`, by the names of their logs, and no others, running."""
        engines = {f"{name}'s engine": s.engine for name, s in specs.items() if s.engine}
        specs = {**engines, **specs}  # an engine starts before the server that uses it
        wanted = set(specs.values())
        # An idle server takes memory; one that is of no more use here goes before others come.
        if setup != self._setup or not wanted >= self._servers.keys():
            await self._stop()
        self._setup = setup
        for name, spec in specs.items():
            if spec not in self._servers:
                self._say(f"starting the server of {name}")
                url = self._servers[spec.engine].url if spec.engine else None
                server = running(spec, setup, name.replace(" ", "-"), url)
                self._servers[spec] = await self._stack.enter_async_context(server)

    def server(self, spec: ServerSpec) -> Server | None:
        """The running server of `spec`, if there is one."""
        return self._servers.get(spec)

    def cpu_seconds(self) -> dict[ServerSpec | None, float]:
        """What each server has used since its start."""
        return {spec: server.cpu_seconds() for spec, server in self._servers.items()}

    async def phases(self, spec: ServerSpec) -> dict[str, float]:
        """What the server of `spec` tells of where its calls' time went, until now."""
        return await phases(self._servers[spec])

    async def rest(self) -> None:
        """Wait until every server is at rest (5 s at most): none computes in another's time."""
        until = time.monotonic() + LONGEST_S
        busy = True
        while busy and time.monotonic() < until:
            before, began = sum(self.cpu_seconds().values()), time.monotonic()
            await asyncio.sleep(REST_S)
            used = sum(self.cpu_seconds().values()) - before
            busy = used > RESTING * (time.monotonic() - began)

    def url(self, spec: ServerSpec, delay_ms: int) -> str:
        """The address of the server of `spec`, behind a network of this mean round trip."""
        if (spec, delay_ms) not in self._addresses:
            far = self._stack.enter_context(behind(self._servers[spec].url, delay_ms))
            self._addresses[spec, delay_ms] = far
        return self._addresses[spec, delay_ms]

    async def _stop(self) -> None:
        await self._stack.aclose()
        self._servers.clear()
        self._addresses.clear()
        self._setup = None


@contextmanager
def behind(url: str, delay_ms: int) -> Iterator[str]:
    """The address of the server at `url`, behind a network of this mean round trip.

    The proxy is a process of its own: what it computes is not the client's CPU time, and no long
    computation of the client makes it late.
    """
    if delay_ms == 0:
        yield url
        return
    words = ("--to", url, "--rtt-ms", str(delay_ms), "--jitter", str(JITTER))
    with subprocess.Popen(
        [sys.executable, "-m", "weftline.delay", *words],
        stdin=subprocess.PIPE,  # closes with this process, which ends the proxy
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
