"""The program of a worker process: it compiles and applies transforms that may take long.

`python -m weftline_server.lowering.transform_host FD PARENT`. A frame is a 4-byte length and JSON.
A request is `{"check": [spec, ...]}`, where a predicate counts as a spec, or
`{"run": [spec, ...], "value": ...}`. With `"cases": [predicate, ...]` the result is the number of
the first one that holds for the value. The answer is `{"value": ...}` or the body of an error. The
server kills a worker that takes too long, so nothing here needs a limit of time.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from typing import Any, Protocol

from weftline.contract import predicates, transforms
from weftline.contract.children import die_with, keep_only
from weftline.contract.errors import TransformFailed, WeftlineError

HEADER_BYTES = 4
# Of address space: a value of 2^24 characters, its copies and what PyYAML makes of it need less.
MOST_MEMORY = 4 << 30


def main() -> None:
    """Answer requests until the other end of the socket closes."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    keep_only(fd)
    # Ctrl-C signals the whole foreground process group. The server decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as stream:
        while (request := read_frame(stream)) is not None:
            stream.write(frame(answer(json.loads(request))))
            stream.flush()


def frame(message: Any) -> bytes:
    """`message` as a frame. Lone surrogates travel as escapes."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEADER_BYTES) + body


class Readable(Protocol):
    """What frames are read from."""

    def read(self, size: int, /) -> bytes: ...


def read_frame(stream: Readable) -> bytes | None:
    """The body of the next frame; None at the end."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    return stream.read(int.from_bytes(header))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "check" in request:
            for spec in request["check"]:
                _check(spec)
            return {"value": None}
        value = transforms.run(request["run"], request["value"])
        cases = request.get("cases")
        return {"value": value if cases is None else predicates.first(cases, value)}
    except WeftlineError as error:
        return error.to_body()
    except (MemoryError, RecursionError) as error:
        reason = f"{type(error).__name__}: the value is too large for its transforms"
        return TransformFailed(reason).to_body()


def _check(spec: dict[str, Any]) -> None:
    if spec.get("op") in predicates.OPS:
        predicates.prepare(spec)
    else:
        transforms.parse(spec)


if __name__ == "__main__":
    main()
