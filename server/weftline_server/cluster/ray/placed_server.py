"""One server as a Ray actor.

Ray places it on a node, and places it on another one if that node dies. Requests do not go through
Ray: the server is a process of its node, which listens on the same port on each node. Two servers
of one node share that port.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from weftline_server.cluster.ray.engine_actor import node_name
from weftline_server.commands.server_process import (
    ServerProcess,
    authority,
    listening,
    pause_s,
    started,
    until_ready,
)

log = logging.getLogger("weftline.cluster")


class PlacedServer:
    """Runs a server in a process, and starts it again whenever it has ended by itself."""

    def __init__(
        self, words: Sequence[str], host: str, port: int, drain_s: float, more: Mapping[str, str]
    ) -> None:
        """`words` are those of the command line, `more` are further environment variables."""
        import ray

        self._words, self._drain_s, self._more = list(words), drain_s, dict(more)
        self._ip = str(ray.util.get_node_ip_address())
        self._node = node_name()
        self._public = listening(host, port, shared=True)
        self._url = f"http://{authority(self._ip, self._public.getsockname()[1])}"
        # Bound, but not listening: nobody else takes the port on which engines join.
        self._gate = listening(self._ip, 0, shared=False)
        self._now: ServerProcess | None = None
        self._address = ""
        self._last_line = ""
        self._failure = ""
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def state(self) -> dict[str, Any]:
        """Where engines join it, clients and other servers reach it, whether it is ready, and why
        it last failed to start. The types are plain, so that nothing of ours is pickled.
        """
        found = self._now
        return {
            "node": self._node,
            "gate": self._gate.getsockname(),
            "url": self._url,
            "address": self._address,
            "ready": found is not None and found.said is not None,
            "failure": self._failure,
        }

    def leave(self, seconds: float) -> None:
        """Let the server hand its sessions over within `seconds`, and end it."""
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(seconds)

    def _run(self) -> None:
        self._loop.run_until_complete(self._keep())

    async def _keep(self) -> None:
        """Keep the server until `leave`."""
        leaving = asyncio.create_task(self._leave.wait())
        failures = 0
        while not leaving.done():
            living = asyncio.create_task(self._lives())
            await asyncio.wait((living, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                # The kernel spreads connections over all sockets of the port. Nobody would accept
                # those of this one when the server has ended.
                self._public.close()
                if self._now is not None:
                    await self._now.end(self._drain_s)
                living.cancel()
                return
            failures = 0 if living.result() else failures + 1
            await asyncio.wait((leaving,), timeout=pause_s(failures))

    async def _lives(self) -> bool:
        """Start the server, and wait until it has ended. Return whether it was ready."""
        with listening(self._ip, 0, shared=False) as private:
            self._address = f"http://{authority(*private.getsockname())}"
            gate = self._gate.getsockname()
            found, ready = await started(
                self._words, self._public, private, self._address, gate, self._more, heard=True
            )
        self._now = found
        hearing = asyncio.create_task(self._hear(found.process))
        was_ready = await until_ready(found, ready)
        if was_ready:
            self._failure = ""
        code = await found.process.wait()
        self._now = None
        await hearing
        if not was_ready:
            self._failure = self._last_line or f"it ended with code {code}"
        log.error("the server ended with code %s, and is started again", code)
        return was_ready

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        """Pass on what it says to operators, and remember the last line."""
        assert process.stderr is not None
        async for line in process.stderr:
            self._last_line = line.decode(errors="replace").strip()
            print(self._last_line, file=sys.stderr, flush=True)
