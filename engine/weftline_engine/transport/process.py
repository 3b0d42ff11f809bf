"""The embedded engine behind a process boundary: starts the child and speaks `wire` with it.

The model runs in a process of its own, so that a step never stops the server's event loop and a
crash takes no server down. The child ends when this end of the socket closes, however we end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping

from weftline_engine.api import Description, EngineDied, Event, Hints, Op, Retention
from weftline_engine.embedded.config import EmbeddedConfig, Precision
from weftline_engine.transport import wire

__all__ = ["EmbeddedConfig", "Precision", "ProcessEngine"]


# How often a thread looks whether the others have come to a barrier, of which a step has some 250,
# before it sleeps: 50 us. OpenMP's own count, 300 times that, keeps a thread that shares its core
# with one it waits for from ever letting that one run. Beside one busy process on 2 cores a step of
# 8 rows took 1,060 ms so, and takes 38 ms; 20 ms on quiet cores, whatever the count from 300 on.
SPINS = 1000


def environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Of the child: what this process has, and how OpenMP waits unless that says it."""
    says = "GOMP_SPINCOUNT" in outer or "OMP_WAIT_POLICY" in outer
    return dict(outer) if says else {**outer, "GOMP_SPINCOUNT": str(SPINS)}


class ProcessEngine:
    """An `api.Engine` in a child process. Use it from one event loop."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self._config = config
        self._child: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._child.pid if self._child and self._child.returncode is None else None

    async def start(self) -> Description:
        """Start the child and wait until the model is loaded. Raises EngineDied with its reason."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "weftline_engine.transport.host"),
                *self._config.arguments(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment(os.environ),
                pass_fds=(theirs.fileno(),),
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            messages = await self._read()
        except BaseException:
            await self.close()
            raise
        first = messages[0] if messages else None
        if isinstance(first, Description):
            return first
        reason = first.message if isinstance(first, wire.LoadFailed) else "it ended while loading"
        await self.close()
        raise EngineDied(f"the engine did not start: {reason}")

    def submit(self, op: Op) -> None:
        self._send(wire.Submit(op))

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        tokens, text = (None, part) if isinstance(part, str) else (part, None)
        self._send(wire.Feed(op, offset, tokens, text, last))

    def update(self, op: str, hints: Hints) -> None:
        self._send(wire.Update(op, hints))

    def cancel(self, op: str) -> None:
        self._send(wire.Cancel(op))

    def retain(self, context: str, retention: Retention) -> None:
        self._send(wire.Retain(context, retention))

    def free(self, context: str) -> None:
        self._send(wire.Free(context))

    async def events(self) -> AsyncIterator[list[Event]]:
        """The events of one step at a time. A killed child closes the socket, which ends this."""
        while messages := await self._read():
            yield [one for one in messages if isinstance(one, Event)]
        if not self._closing:
            assert self._child is not None
            code = await self._child.wait()
            raise EngineDied(f"the engine process ended by itself ({_ending(code)})")

    async def close(self) -> None:
        """Close the socket, which ends the child; kill it where that takes more than 5 s."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._child is None:
            return
        try:
            await asyncio.wait_for(self._child.wait(), timeout=5)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()

    def _send(self, verb: wire.Verb) -> None:
        # To a dead child this writes nothing: its end comes out of `events`.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.encode([verb]))

    async def _read(self) -> list[wire.Message]:
        """The messages of the next frame; none once the child is gone."""
        assert self._reader is not None, "events before start"
        try:
            header = await self._reader.readexactly(wire.HEADER_BYTES)
            return wire.decode(await self._reader.readexactly(wire.length(header)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return []


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
