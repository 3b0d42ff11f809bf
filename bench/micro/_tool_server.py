"""A server for the benchmarks of tools, and the calls that a null engine writes there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def call(name: str, **arguments: Any) -> str:
    """A tool call as models write it."""
    made = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{made}\n</tool_call>\n"


@contextmanager
def started(words: Sequence[str]) -> Iterator[str]:
    """A server with these arguments, and its url."""
    server = subprocess.Popen(
        [sys.executable, "-m", "weftline_server", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        if not said:
            raise SystemExit("weftline bench tools: the server did not start")
        yield said.split()[-1]
    finally:
        server.terminate()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()
