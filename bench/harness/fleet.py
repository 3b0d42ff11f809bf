"""The servers that are up, kept from workload to workload, and the proxies that delay them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Self

from bench.harness.servers import Server, ServerSpec, Setup, phases, running

JITTER = 0.2  # share of the mean round trip: 250 ms become 200 to 300, as in the paper

# A server is at rest when it has used less than a tenth of a core for REST_S. vLLM's threads spin
# for a second after its last answer: on two cores they take half of what the next system needs.
REST_S, RESTING = 0.25, 0.1
LONGEST_S = 5.0


class Fleet:
    """Starts the servers that a workload needs and keeps them; another setup stops them all."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say
        self._stack = AsyncExitStack()
        self._setup: Setup | None = None
        self._servers: dict[ServerSpec, Server] = {}
        self._addresses: dict[tuple[ServerSpec, int], str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop()

    async def need(self, setup: Setup, specs: dict[str, ServerSpec]) -> None:
        """Run the servers of `specs`, whose keys name their logs, and no others."""
        engines = {f"{name}'s engine": s.engine for name, s in specs.items() if s.engine}
        specs = {**engines, **specs}  # an engine starts before the server that uses it
        wanted = set(specs.values())
        # An idle server holds memory, so those that are no longer needed stop first.
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
        """CPU seconds of each server since its start."""
        return {spec: server.cpu_seconds() for spec, server in self._servers.items()}

    async def phases(self, spec: ServerSpec) -> dict[str, float]:
        """Seconds that the calls of the server of `spec` have spent in each phase until now."""
        return await phases(self._servers[spec])

    async def rest(self) -> None:
        """Wait until every server is at rest, for 5 s at most, so that none slows another down."""
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

    The proxy is a process of its own, so that its CPU time is not counted as the client's, and a
    busy client does not delay it.
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
