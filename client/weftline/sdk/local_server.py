"""Starts a weftline server that runs as long as a `with` block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from weftline.contract.errors import EngineUnavailable

STOP_S = 15.0  # a server drains for at most 10 s


@contextmanager
def local_server(*arguments: str, port: int = 0) -> Iterator[str]:
    """Run `weftline serve *arguments` for the length of a `with` block, and return its base URL.

    `port` 0 means a free port. The server ends with the block, also after an exception or Ctrl-C.
    Raises EngineUnavailable if the server does not start. Its own error message goes to this
    process's standard error.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "weftline_server",
            "serve",
            "--port",
            str(port),
            "--until-stdin-closes",
            *arguments,
        ],
        stdin=subprocess.PIPE,  # closes when this process ends, even if it is killed
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C then reaches only this process, which stops the server
    )
    try:
        yield _url(process)
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "serves on http" in line:
            return line.split()[-1]
    raise EngineUnavailable(
        f"`weftline serve` ended with exit code {process.wait()}; its message is above"
    )


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
