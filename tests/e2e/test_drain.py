"""SIGTERM to a real server: not ready first, then what runs finishes, then exit code 0."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import httpx2

from tests.waits import WAIT_S, wait_until


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
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
        with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
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


def until(client: httpx2.Client, path: str, status: int) -> httpx2.Response:
    """Wait until `path` answers with `status`. A refused connection fails the test."""
    answers: list[httpx2.Response] = []

    def answers_so() -> bool:
        answers.append(client.get(path))
        return answers[-1].status_code == status

    wait_until(answers_so)
    return answers[-1]


def running(client: httpx2.Client, count: int) -> None:
    """Wait until `count` calls are on the engine."""
    line = f'weftline_running_calls{{engine="null"}} {count}.0'
    wait_until(lambda: line in client.get("/metrics").text)


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
    with serving("--drain-s", "600") as (process, client):
        session = client.post("/v1/session").json()["session_id"]
        calls = chain(1)["calls"][1:]
        client.post("/v1/submit", json={"session_id": session, "calls": calls})
        body = {"session_id": session, "semantic_var_id": "y", "wait": True}
        reading = HTTPConnection(client.base_url.host, client.base_url.port or 0, timeout=WAIT_S)
        with closing(reading):
            reading.request("GET", "/health/live")
            assert reading.getresponse().read()
            reading.request("POST", "/v1/get", json.dumps(body))
            # It has been sent on an open connection: the server has it before it answers these.
            for _ in range(2):
                assert client.get("/health/live").status_code == 200
            process.send_signal(signal.SIGTERM)
            answer = reading.getresponse().read()
        assert json.loads(answer)["error"]["type"] == "Cancelled"
        assert process.wait(WAIT_S) == 0


def test_an_idle_server_ends_at_once() -> None:
    """A server without work ends at once."""
    with serving("--drain-s", "600") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
