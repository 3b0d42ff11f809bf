"""Engines in other processes join a server: one hangs, comes back, and leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from weftline import Client, Output, semantic_function

KEY = "a key of enough characters"


@semantic_function
def echo(text, out=Output(max_tokens=400)):  # noqa: B008
    """{{input:text}} {{output:out}}"""


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """A server without an engine of its own: its URL, and the address where engines join."""
    with process("serve", "--port", "0", "--engines-on", "127.0.0.1:0") as running:
        assert running.stdout is not None
        gate = running.stdout.readline().split()[-1]
        yield running.stdout.readline().split()[-1], gate


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "weftline_server", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "WEFTLINE_ENGINE_KEY": KEY},
    )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGCONT)
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        assert running.stdout is not None
        running.stdout.close()


def until(url: str, wanted: dict[str, str]) -> dict[str, Any]:
    """Wait until the engines are in these states; the answer of the health route."""
    deadline = time.monotonic() + 60
    while True:
        health: dict[str, Any] = httpx2.get(f"{url}/health/ready").json()
        if health["engines"] == wanted:
            return health
        assert time.monotonic() < deadline, health
        time.sleep(0.05)


def test_a_host_hangs_comes_back_and_leaves() -> None:
    """A host that stops in the middle of its calls is fenced. Another finishes the calls that had
    no output yet. The first one goes on, joins again, and leaves without an error.
    """
    join = ("--engine", "null", "--null-step-s", "0.02")
    with server() as (url, gate), Client(url) as client, client.session() as session:
        assert httpx2.get(f"{url}/health/ready").json() == {"status": "not ready", "engines": {}}
        first = process("join", gate, *join, "--name", "first", "--node", "n1")
        second = process("join", gate, *join, "--name", "second", "--node", "n2")
        with first as hangs:
            assert until(url, {"first": "ready"})["nodes"] == {"first": "n1"}
            hangs.send_signal(signal.SIGSTOP)
            story = echo(" ".join(f"w{i}" for i in range(40)))
            with second:
                health = until(url, {"first": "down", "second": "ready"})
                assert "no heartbeat for 5 s" in health["reasons"]["first"]
                assert len(str(story.get()).split()) == 40
                (call,) = session.graph()["calls"]
                assert (call["engine"], call["node"]) == ("second", "n2")
                hangs.send_signal(signal.SIGCONT)
                until(url, {"first": "ready", "second": "ready"})
        until(url, {})
