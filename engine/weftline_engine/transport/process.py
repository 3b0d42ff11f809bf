"""Runs an engine in a child process, and exchanges frames with it over a socket.

The model has its own process, so a step never blocks the server's event loop, and a crash of the
engine does not end the server. The child ends when this end of the socket closes. That also happens
when this process is killed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from weftline_engine.api import Description, EngineDied, Event, Fed, Hints, Op, Retention
from weftline_engine.transport import wire
from weftline_engine.transport.output_log import Printed

# How many times an OpenMP thread polls at a barrier before it sleeps: 1,000 polls take 50 us. A
# step has about 250 barriers. OpenMP's default is 300 times longer. With the default, a thread that
# shares its core with a thread it waits for does not let that one run. Beside one busy process on
# 2 cores, a step of 8 rows took 1,060 ms with the default and takes 38 ms with 1,000. On idle cores
# it takes 20 ms with any count from 300 up.
SPINS = 1000


# A child beats every 0.5 s, also in a long step. One that is silent for SILENT_S is stopped, or its
# interpreter is held. The longest step on a slow CPU, a prompt of 8,192 tokens at once, took 40 s.
TICK_S = 0.25
SILENT_S = 4.0
STEP_S = 300.0


def environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: `outer`, plus SPINS unless it sets how OpenMP waits."""
    chosen = "GOMP_SPINCOUNT" in outer or "OMP_WAIT_POLICY" in outer
    return dict(outer) if chosen else {**outer, "GOMP_SPINCOUNT": str(SPINS)}


class ChildConfig(Protocol):
    """The settings of an engine in a child process: its program, arguments and environment."""

    @property
    def module(self) -> str: ...
    def arguments(self, fd: int) -> list[str]: ...
    def environment(self, outer: Mapping[str, str]) -> dict[str, str]: ...


class ProcessEngine:
    """An `api.Engine` in a child process. Use it from a single event loop.

    With a `label`, what the child prints is written to the log under it, as are the words of what
    the child starts. Without one it has this process's standard error.
    """

    def __init__(self, config: ChildConfig, label: str | None = None) -> None:
        self._config = config
        self._label = label
        self._printed: Printed | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._closing = False
        self._life = Life()

    @property
    def pid(self) -> int | None:
        """The child's process id, or None while it does not run."""
        return self._child.pid if self._child and self._child.returncode is None else None

    async def start(self) -> Description:
        """Start the child and wait until the model is loaded. Raises EngineDied with a reason."""
        ours, theirs = socket.socketpair()
        async with AsyncExitStack() as stack:
            stack.enter_context(theirs)
            output = None
            if self._label is not None:
                opened = Printed.opened(self._label)
                self._printed, output = await stack.enter_async_context(opened)
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._config.module,
                *self._config.arguments(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=output,
                env=self._config.environment(environment(os.environ)),
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

    def feed(self, op: str, offset: int, part: Fed, last: bool) -> None:
        self._send(wire.Feed.of(op, offset, part, last))

    def update(self, op: str, hints: Hints) -> None:
        self._send(wire.Update(op, hints))

    def cancel(self, op: str) -> None:
        self._send(wire.Cancel(op))

    def retain(self, context: str, retention: Retention) -> None:
        self._send(wire.Retain(context, retention))

    def free(self, context: str) -> None:
        self._send(wire.Free(context))

    async def events(self) -> AsyncIterator[list[Event]]:
        """Yield the events of one step at a time, until `close`.

        Raises EngineDied if the child ends by itself. A killed child closes its end of the socket.
        """
        watch = asyncio.create_task(self._watch())
        try:
            while messages := await self._read():
                self._life.heard(messages)
                if events := [one for one in messages if isinstance(one, Event)]:
                    yield events
        finally:
            watch.cancel()
        if not self._closing:
            assert self._child is not None
            code = await self._child.wait()
            raise EngineDied(
                self._life.ended or f"the engine process ended by itself ({_ending(code)})"
            )

    async def _watch(self) -> None:
        """Kill the child when it hangs: then its socket closes, and `events` ends."""
        assert self._child is not None
        while not self._life.hangs(time.monotonic()):  # noqa: ASYNC110 - it counts the ticks
            await asyncio.sleep(TICK_S)
        if self._child.returncode is None:
            self._child.kill()  # SIGKILL also ends a stopped process

    async def close(self) -> None:
        """Close the socket, which ends the child. Kill the child if it still runs after 5 s."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._child is None:
            return
        if self._life.ended and self._child.returncode is None:
            self._child.kill()  # it would not see that its socket was closed
        try:
            await asyncio.wait_for(self._child.wait(), timeout=5)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        if self._printed is not None:
            await self._printed.end()

    def _send(self, verb: wire.Verb) -> None:
        # A dead child gets nothing. `events` reports that it is dead.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.encode([verb]))

    async def _read(self) -> list[wire.Message]:
        """Return the messages of the next frame, or an empty list once the child has ended."""
        assert self._reader is not None, "events before start"
        try:
            header = await self._reader.readexactly(wire.HEADER_BYTES)
            return wire.decode(await self._reader.readexactly(wire.length(header)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return []


class Life:
    """Decides whether a child hangs. A child that has never sent a heartbeat is not watched.

    The count is one of ticks of this process that pass without a frame from the child. So the child
    is not blamed for time in which this process itself was stopped or busy.
    """

    def __init__(self) -> None:
        self.ended = ""  # why the child counts as hung; empty while it does not
        self._beats = False
        self._silent = 0  # ticks since the last frame
        self._step_since: float | None = None

    def heard(self, messages: Sequence[wire.Message]) -> None:
        """Note a frame of the child."""
        self._silent = 0
        for one in messages:
            if isinstance(one, wire.Heartbeat):
                self._beats, self._step_since = True, one.time

    def hangs(self, now: float) -> bool:
        """Note a tick at time `now`, in seconds, and return whether the child hangs."""
        self._silent += 1
        since = self._step_since
        if self._beats and self._silent * TICK_S > SILENT_S:
            self.ended = f"the engine process gave no sign of life for {SILENT_S:g} s"
        elif since is not None and now - since > STEP_S:
            self.ended = f"a step of the engine did not end in {STEP_S:g} s"
        return bool(self.ended)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
