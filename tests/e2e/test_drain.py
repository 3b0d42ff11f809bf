"""SIGTERM to a real server: not ready first, then what runs finishes, then exit code 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

WAIT_S = 20.0


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server that a test may send signals to, and a client for it."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "weftline_server",
            "serve",
            "--engine",
            "null",
            "--port",
            "0",
            "--null-step-s",
            "0.05",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def chain(words: int) -> dict[str, Any]:
    """A whole run of two calls, each of `words` words."""
    text = " ".join(["word"] * words)
    first = {"name": "x", "in_out": "out", "semantic_var_id": "x"}
    read = {"name": "x", "in_out": "in", "semantic_var_id": "x"}
    second = {"name": "y", "in_out": "out", "semantic_var_id": "y"}
    return {
        "calls": [
            {"name": "first", "prompt": f"{text}{{{{output:x}}}}", "placeholders": [first]},
            {
                "name": "second",
                "prompt": "{{input:x}}{{output:y}}",
                "placeholders": [read, second],
            },
        ],
        "get": ["y"],
        "close": True,
    }


def until(client: httpx.Client, path: str, status: int) -> httpx.Response:
    """Wait until `path` answers with `status`. A refused connection fails the test."""
    deadline = time.monotonic() + WAIT_S
    while (answer := client.get(path)).status_code != status:
        assert time.monotonic() < deadline, f"{path} never became {status}"
        time.sleep(0.01)
    return answer


def running(client: httpx.Client, count: int) -> None:
    """Wait until `count` calls are on the engine."""
    deadline = time.monotonic() + WAIT_S
    while f'weftline_running_calls{{engine="null"}} {count}.0' not in client.get("/metrics").text:
        assert time.monotonic() < deadline, f"there were never {count} calls"
        time.sleep(0.01)


def test_running_calls_finish_and_new_work_is_refused() -> None:
    """The second call of the chain is not queued yet when the signal comes, and still runs."""
    with serving() as (process, client), ThreadPoolExecutor() as pool:
        answer = pool.submit(client.post, "/v1/submit", json=chain(20))
        running(client, 1)
        process.send_signal(signal.SIGTERM)
        assert until(client, "/health/ready", 503).json()["status"] == "draining"
        assert client.get("/health/live").status_code == 200
        refused = client.post("/v1/session")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["type"] == "EngineUnavailable"
        assert client.post("/v1/submit", json=chain(1)).status_code == 503
        assert answer.result().json()["values"] == {"y": " ".join(["word"] * 20)}
        assert process.wait(WAIT_S) == 0


def test_a_second_signal_ends_it_within_two_seconds() -> None:
    """The second signal ends the server although a call would run for a minute."""
    for second in (signal.SIGTERM, signal.SIGINT):
        with serving() as (process, client), ThreadPoolExecutor() as pool:
            answer = pool.submit(client.post, "/v1/submit", json=chain(500))
            running(client, 1)
            process.send_signal(signal.SIGTERM)
            until(client, "/health/ready", 503)
            process.send_signal(second)
            # SIGINT is reported as an interrupt, unless the shell has told its jobs to ignore it. A
            # forced end has the exit code 1.
            assert process.wait(2) in ({0, 1} if second == signal.SIGTERM else {0, 1, 130})
            assert isinstance(
                answer.exception() or answer.result(), (httpx.HTTPError, httpx.Response)
            )


def test_a_call_that_runs_too_long_gets_an_error() -> None:
    """At the end of the drain the reader gets a typed error. The exit code is still 0."""
    with serving("--drain-s", "0.2") as (process, client), ThreadPoolExecutor() as pool:
        answer = pool.submit(client.post, "/v1/submit", json=chain(500))
        running(client, 1)
        process.send_signal(signal.SIGTERM)
        error = answer.result().json()["error"]
        assert (error["type"], error["message"]) == ("Cancelled", "the server is shutting down")
        assert process.wait(WAIT_S) == 0


def test_a_call_without_its_input_does_not_hold_the_drain() -> None:
    """A call without its input cannot finish. The drain does not wait for it, and its reader gets
    an error.
    """
    with serving("--drain-s", "600") as (process, client), ThreadPoolExecutor() as pool:
        session = client.post("/v1/session").json()["session_id"]
        calls = chain(1)["calls"][1:]
        client.post("/v1/submit", json={"session_id": session, "calls": calls})
        body = {"session_id": session, "semantic_var_id": "y", "wait": True}
        answer = pool.submit(client.post, "/v1/get", json=body)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert answer.result().json()["error"]["type"] == "Cancelled"
        assert process.wait(WAIT_S) == 0


def test_an_idle_server_ends_at_once() -> None:
    """A server without work ends at once."""
    with serving("--drain-s", "600") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
