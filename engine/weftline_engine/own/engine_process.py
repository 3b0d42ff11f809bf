"""The program of the embedded engine's child process.

`python -m weftline_engine.own.engine_process --fd N --model DIR` loads the model, and serves the
engine until the socket closes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from weftline_engine.transport import garbage, wire
from weftline_engine.transport.host import connect, serve


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
    from weftline_engine.own.embedded.model.config import ModelError
    from weftline_engine.own.loading import announced, load

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


def _options() -> argparse.Namespace:
    """Parse the command line that `EmbeddedConfig.arguments` writes."""
    parser = argparse.ArgumentParser(prog="weftline_engine.own.engine_process", description=__doc__)
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
