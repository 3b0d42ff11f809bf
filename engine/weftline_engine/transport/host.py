"""The program of the embedded engine's child process.

`python -m weftline_engine.transport.host --fd N --model DIR`: a thread reads verbs from the socket.
The main thread runs the engine, and sends the events of each step as one frame. The process ends at
once when the other end of the socket closes, even in the middle of a step.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from weftline.contract.children import die_with
from weftline_engine import api, garbage
from weftline_engine.transport import wire

BEAT_S = 0.5  # seconds between two signs of life


def main() -> None:
    """Load the model, send its description or the failure, and serve until the socket closes."""
    options = _options()
    if options.cores:
        os.sched_setaffinity(0, map(int, options.cores.split(",")))
    connection, verbs = connect(options.fd)
    began = time.monotonic()
    name = options.name or options.model.name
    print(f"engine: loading {name}", file=sys.stderr, flush=True)
    # Importing torch takes 2 s. The listening thread already notices if the parent dies meanwhile.
    from weftline_engine.embedded.model.config import ModelError
    from weftline_engine.loading import announced, load

    try:
        core, description = load(options)
    except (ModelError, MemoryError) as error:
        connection.sendall(wire.encode([wire.LoadFailed(str(error) or "out of memory")]))
        sys.exit(1)
    cores, seconds = len(os.sched_getaffinity(0)), time.monotonic() - began
    print(announced(description, cores, seconds), file=sys.stderr, flush=True)
    garbage.after_the_start(garbage.ENGINE)
    connection.prepare = core.prepare
    connection.sendall(wire.encode([description]))
    serve(core, connection, verbs)


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


def _options() -> argparse.Namespace:
    """Parse the command line that `EmbeddedConfig.arguments` writes."""
    parser = argparse.ArgumentParser(prog="weftline_engine.transport.host", description=__doc__)
    add = parser.add_argument
    add("--fd", type=int, required=True, help="file descriptor of the socket to the parent")
    add("--model", type=Path, required=True, help="the model's directory")
    add("--name", help="name to announce (default: the directory's name)")
    add("--dtype", default="bfloat16", help="type of weights, activations and KV cache")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--kv-tokens", type=int, help="size of the KV cache in tokens")
    add("--kv-fraction", type=float, help="size of the KV cache as a share of the free memory")
    add("--host-kv-tokens", type=int, default=0, help="tokens whose copies fit into host memory")
    add("--block-size", type=int, default=16, help="tokens of a KV block")
    add("--max-running", type=int, default=64, help="most sequences in a batch")
    add("--step-tokens", type=int, help="most tokens that one step computes")
    add("--seed", type=int, default=0, help="seed for requests that bring none")
    add("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights")
    add("--quantize", default="none", help="none, q8_0 or q4_0: weights of 16 bits and more")
    add("--cores", help="comma-separated CPU cores to run on (default: all)")
    add("--no-tree-attention", action="store_true", help="read shared prefixes once per sequence")
    add("--no-drafting", action="store_true", help="verify no guesses of the next tokens")
    return parser.parse_args()


if __name__ == "__main__":
    main()
