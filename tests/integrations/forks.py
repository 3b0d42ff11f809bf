"""Servers as forks of one process that has imported them: a start costs 30 ms instead of 1 s.

This module is also a program. It runs in the interpreter that has the server, and forks a server
for every line that it reads. The functions here write these lines. Each server is a process of its
own that runs `weftline`'s own main.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

# The adapters' tests may run in an interpreter that has no server.
SERVER_PYTHON = os.environ.get("WEFTLINE_SERVER_PYTHON", sys.executable)


@dataclass(frozen=True, slots=True)
class Forked:
    """A server's process, and the first line of its output ("" if it ended without one)."""

    pid: int
    said: str

    def send_signal(self, number: int) -> None:
        """Send it a signal. This does nothing if it has ended."""
        os.kill(self.pid, number)  # it is not reaped, so no other process gets its id

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended."""
        descriptor = os.pidfd_open(self.pid)
        select.select([descriptor], [], [])
        os.close(descriptor)


def fork(words: Sequence[str]) -> Forked:
    """Start `weftline WORDS` in this process's environment, and wait for its first line."""
    parent = _parent()
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(json.dumps([*words, dict(os.environ)]) + "\n")
    parent.stdin.flush()
    return Forked(*json.loads(parent.stdout.readline()))


@cache
def _parent() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    parent = subprocess.Popen([SERVER_PYTHON, __file__], stdin=pipe, stdout=pipe, text=True)
    atexit.register(parent.communicate)  # closes its input, and then it ends
    return parent


def _run() -> None:
    import weftline_server.commands.serve  # noqa: F401  importing takes most of a start

    children: list[int] = []
    for line in sys.stdin:
        *words, environment = json.loads(line)
        out, into = os.pipe()
        if (child := os.fork()) == 0:
            _serve(words, environment, into)
        os.close(into)
        children.append(child)
        # The pipe stays open, because the server may write more lines.
        said = os.fdopen(os.dup(out)).readline()
        print(json.dumps([child, said]), flush=True)
    for child in children:
        os.kill(child, signal.SIGKILL)


def _serve(words: list[str], environment: dict[str, str], into: int) -> NoReturn:
    from weftline_server.cli import main

    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(into, 1)
    os.close(into)
    sys.exit(main(words))


if __name__ == "__main__":
    _run()
