"""The child's side of the process boundary: `python -m weftline_engine.host --fd N --model DIR`.

Reads verbs in a thread and runs the engine in the main one, sending the events of a step as one
frame. It ends at once when the other end of the socket closes, whatever the step is doing.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from weftline_engine import wire

if TYPE_CHECKING:
    from weftline_engine.embedded.engine import Core


def main() -> None:
    """Load the model, announce it or why not, and serve until the socket closes."""
    options = _options()
    if options.cores:
        os.sched_setaffinity(0, map(int, options.cores.split(",")))
    connection = socket.socket(fileno=options.fd)
    # Ctrl-C goes to the whole foreground group; it is the server that decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    verbs: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, verbs), daemon=True).start()
    # Imported here, so that a parent that dies during the 2 s of importing torch is noticed.
    from weftline_engine.embedded.model.config import ModelError
    from weftline_engine.loading import load

    try:
        core, description = load(options)
    except (ModelError, MemoryError) as error:
        connection.sendall(wire.encode([wire.LoadFailed(str(error) or "out of memory")]))
        sys.exit(1)
    connection.sendall(wire.encode([description]))
    _serve(core, connection, verbs)


def _serve(core: Core, connection: socket.socket, verbs: queue.SimpleQueue[wire.Message]) -> None:
    """One step after the other; sleeps while there is nothing to do."""
    while True:
        if not core.busy:
            _perform(core, verbs.get())
        while not verbs.empty():
            _perform(core, verbs.get())
        events = core.step()
        if events:
            try:
                connection.sendall(wire.encode(events))
            except ConnectionError:
                sys.exit(0)  # the parent is gone


def _perform(core: Core, verb: wire.Message) -> None:
    match verb:
        case wire.Submit(op):
            core.submit(op)
        case wire.Feed(op, offset, tokens, text, last):
            core.feed(op, offset, text or "" if tokens is None else tokens, last)
        case wire.Update(op, hints):
            core.update(op, hints)
        case wire.Cancel(op):
            core.cancel(op)
        case wire.Retain(context, retention):
            core.retain(context, retention)
        case wire.Free(context):
            core.free(context)


def _listen(connection: socket.socket, verbs: queue.SimpleQueue[wire.Message]) -> None:
    """Read frames until the parent closes its end or dies; then end the process."""
    code = 0
    with connection.makefile("rb") as stream:
        try:
            while len(header := stream.read(wire.HEADER_BYTES)) == wire.HEADER_BYTES:
                for verb in wire.decode(stream.read(wire.length(header))):
                    verbs.put(verb)
        except wire.WireError as error:
            print(f"engine: {error}", file=sys.stderr, flush=True)
            code = 1
        except ConnectionError:
            code = 0  # the parent was killed with something still in the pipe
    os._exit(code)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weftline_engine.host", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-tokens", type=int)
    parser.add_argument("--kv-fraction", type=float)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--step-tokens", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--cores", help="by comma; default: all there are")
    parser.add_argument("--no-tree-attention", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
