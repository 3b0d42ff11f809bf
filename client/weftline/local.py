"""A weftline server of one's own: started, waited for, and stopped with the block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from weftline.errors import EngineUnavailable

STOP_S = 15.0  # a server drains for at most 10 s


@contextmanager
def local_server(*arguments: str, port: int = 0) -> Iterator[str]:
    """The base URL of `weftline serve *arguments`, on a free port unless one is given.

    The server runs until the block ends, also by an exception or Ctrl-C. Raises EngineUnavailable
    when it does not come up; what it says of the reason goes to this process's standard error.
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "weftline_server", "serve"),
            *("--port", str(port), "--until-stdin-closes", *arguments),
        ],
        stdin=subprocess.PIPE,  # closes with this process, however it ends
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process alone, which stops the server
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
