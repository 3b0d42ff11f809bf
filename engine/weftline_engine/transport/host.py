"""The engine's side of the socket to its parent, in a child process.

A thread reads verbs from the socket. The main thread runs the engine, and sends the events of each
step as one frame. The process ends at once when the other end of the socket closes, even in the
middle of a step.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from weftline.contract.children import die_with
from weftline_engine import api
from weftline_engine.transport import wire

BEAT_S = 0.5  # seconds between two signs of life


class Steps(Protocol):
    """An engine's core: it receives verbs, and computes one step at a time."""

    @property
    def busy(self) -> bool: ...
    def submit(self, op: api.Op) -> None: ...
    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def update(self, op: str, hints: api.Hints) -> None: ...
    def cancel(self, op: str) -> None: ...
    def retain(self, context: str, retention: api.Retention) -> None: ...
    def free(self, context: str) -> None: ...
    def step(self) -> list[api.Event]: ...


class ParentConnection:
    """The socket to the parent. Two threads send on it: the engine's events, and signs of life."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self._sending = threading.Lock()
        self.prepare: Callable[[api.Op], None] | None = None  # called with each op on arrival

    def sendall(self, data: bytes) -> None:
        """Send all of `data`. Other threads that send wait meanwhile."""
        with self._sending:
            self.socket.sendall(data)


def connect(fd: int) -> tuple[ParentConnection, queue.SimpleQueue[wire.Message]]:
    """The connection to the parent, and the queue of the verbs that a thread reads from it."""
    die_with(os.getppid())
    connection = ParentConnection(fd)
    # Ctrl-C signals the whole foreground process group. The server decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    verbs: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, verbs), daemon=True).start()
    return connection, verbs


class StepProgress:
    """When the engine's main thread last began a step, and whether it waits for work."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def time(self) -> float:
        """The time of the last progress, in seconds of the monotonic clock. While the thread waits
        for work, it is the present time."""
        since = self._since
        return time.monotonic() if since is None else since

    def waits(self) -> None:
        self._since = None

    def goes_on(self) -> None:
        self._since = time.monotonic()


def serve(
    core: Steps, connection: ParentConnection, verbs: queue.SimpleQueue[wire.Message]
) -> None:
    """Run step after step. Sleep while there is no work."""
    progress = StepProgress()
    threading.Thread(target=_beat, args=(connection, progress), daemon=True).start()
    while True:
        if not core.busy:
            progress.waits()
            _perform(core, verbs.get())
        progress.goes_on()
        while not verbs.empty():
            _perform(core, verbs.get())
        events = core.step()
        if events:
            try:
                connection.sendall(wire.encode(events))
            except ConnectionError:
                sys.exit(0)  # the parent has ended


def _beat(connection: ParentConnection, progress: StepProgress) -> None:
    """Tell the parent every BEAT_S that this process runs, and when its last step began."""
    while True:
        try:
            connection.sendall(wire.encode([wire.Heartbeat(progress.time)]))
        except OSError:
            return  # the parent has ended, which the listening thread notices
        time.sleep(BEAT_S)


def _perform(core: Steps, verb: wire.Message) -> None:
    match verb:
        case wire.Submit(op):
            core.submit(op)
        case wire.Feed():
            core.feed(verb.op, verb.offset, verb.part, verb.last)
        case wire.Update(op, hints):
            core.update(op, hints)
        case wire.Cancel(op):
            core.cancel(op)
        case wire.Retain(context, retention):
            core.retain(context, retention)
        case wire.Free(context):
            core.free(context)


def _listen(connection: ParentConnection, verbs: queue.SimpleQueue[wire.Message]) -> None:
    """Read frames until the parent closes its end or dies, then end this process."""
    code = 0
    with connection.socket.makefile("rb") as stream:
        try:
            while len(header := stream.read(wire.HEADER_BYTES)) == wire.HEADER_BYTES:
                for verb in wire.decode(stream.read(wire.length(header))):
                    if isinstance(verb, wire.Submit) and connection.prepare is not None:
                        connection.prepare(verb.op)
                    verbs.put(verb)
        except wire.WireError as error:
            print(f"engine: {error}", file=sys.stderr, flush=True)
            code = 1
        except ConnectionError:
            code = 0  # the parent was killed while data was still in the socket
    os._exit(code)
