"""A real server of another project that a test starts: it ends with the test, also a killed one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx2


@contextmanager
def guarded_server(
    command: Sequence[str], url: str, start_s: float, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start the server, and give its address of version 1 once it is well."""
    guard = (sys.executable, "-m", "weftline_engine.remote.process_group")
    process = subprocess.Popen([*guard, *command], env=env, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        deadline = time.monotonic() + start_s
        while not _answers(url):
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)
        yield f"{url}/v1"
    finally:
        process.stdin.close()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False
