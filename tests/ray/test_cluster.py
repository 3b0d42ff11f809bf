"""`weftline serve --cluster ray` on two real nodes with logical resources.

The tests cover placement, a node that loses power under load, restart on another node, a node that
joins later, and scaling.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.null.asgi import call
from tests.ray.conftest import Nodes
from weftline_server.cluster.ray.ray_replicas import ClusterConfig, wanted

# A test waits for nodes and replicas several times, 90 s each at most.
pytestmark = pytest.mark.timeout(600)

SERVE = (sys.executable, "-m", "weftline_server", "serve", "--port", "0")
NULL = ("--engine", "null", "--null-step-s", "0.02")
REPLICA = ("--replica-cpus", "0.1", "--replica-resources", '{"slot": 1}')


@contextmanager
def server(nodes: Nodes, *arguments: str) -> Iterator[str]:
    """Run a server on the cluster, and provide its URL."""
    running = subprocess.Popen(
        [*SERVE, *NULL, "--cluster", "ray", *REPLICA, *arguments, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**nodes.environment, "RAY_ADDRESS": nodes.address},
    )
    assert running.stdout is not None and running.stdin is not None
    try:
        for line in running.stdout:
            if "serves on http" in line:
                yield line.split()[-1]
                break
    finally:
        running.stdin.close()
        running.wait(120)
        running.stdout.close()


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{url}/health/ready", timeout=30).json()
    return found


def until(url: str, nodes: list[str], seconds: float = 90) -> float:
    """Wait until the ready replicas are on exactly these nodes, and return the seconds it took."""
    started = time.monotonic()
    while True:
        found = health(url)
        ready = [name for name, state in found["engines"].items() if state == "ready"]
        if sorted(found["nodes"][name] for name in ready) == sorted(nodes):
            return time.monotonic() - started
        assert time.monotonic() < started + seconds, found
        time.sleep(0.1)


def calls_on(url: str) -> dict[str, float]:
    """Return the number of running calls by engine."""
    text = httpx2.get(f"{url}/metrics", timeout=30).text
    return {
        line.split('"')[1]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("weftline_running_calls{")
    }


def graph(url: str, number: int) -> tuple[int, dict[str, Any], float]:
    """Run a chain of three calls in one request. Return status, body and seconds."""
    text = " ".join(f"g{number}w{i}" for i in range(60))

    def echo(out: str) -> dict[str, Any]:
        return {"in_out": "out", "semantic_var_id": out, "sampling": {"max_tokens": 400}}

    calls = [
        call("a", f"{text} {{{{output:x}}}}", x=echo("x")),
        call("b", "{{input:i}} {{output:x}}", i="x", x=echo("y")),
        call("c", "{{input:i}} {{output:x}}", i="y", x=echo("z")),
    ]
    started = time.monotonic()
    body = {"calls": calls, "get": ["x", "y", "z"], "graph": True}
    answer = httpx2.post(f"{url}/v1/submit", json=body, timeout=90)
    return answer.status_code, answer.json(), time.monotonic() - started


def test_without_a_token_it_does_not_start() -> None:
    """The server exits with a sentence, before it looks for a cluster."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [*SERVE, *NULL, "--cluster", "ray"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Ray's token authentication is off: set RAY_AUTH_MODE=token" in done.stderr


def test_a_node_dies_under_load(nodes: Nodes) -> None:
    """Twenty graphs run on two nodes, and one node is killed. Within 30 s each graph gives its
    exact result or fails with a reason. The lost replica restarts on the other node."""
    nodes.start("n1", slots=2)
    with server(nodes, "--replicas", "2") as url, ThreadPoolExecutor(20) as pool:
        until(url, ["n0", "n1"])
        before = [pool.submit(graph, url, number) for number in range(4)]
        calls = [c for one in before for c in one.result()[1]["graph"]["calls"]]
        assert {c["node"] for c in calls} == {"n0", "n1"}
        running = [pool.submit(graph, url, number) for number in range(20)]
        while not all(count > 2 for count in calls_on(url).values()):
            time.sleep(0.02)
        time.sleep(0.3)  # 15 words, so some readers have got part of an answer
        nodes.kill("n1")
        killed = time.monotonic()
        results = [one.result() for one in running]
        assert time.monotonic() - killed < 30
        for number, (status, body, seconds) in enumerate(results):
            text = " ".join(f"g{number}w{i}" for i in range(60))
            assert seconds < 35
            if status == 200:
                # Each value comes from one attempt: words of a second one would follow.
                assert [body["values"][v].split() for v in "xyz"] == [text.split()] * 3
                assert body["graph"]["calls"][-1]["node"] == "n0"
            else:
                assert body["error"]["type"] == "EngineFailed"
                assert "its host disconnected" in body["error"]["message"]
                assert body["error"]["call"] in ("a", "b", "c")
        assert 200 in {status for status, _, _ in results}
        until(url, ["n0", "n0"])


def test_it_scales_with_the_queue_and_takes_nodes_that_come_later(nodes: Nodes) -> None:
    """Three replicas are wanted, and there is room for two. A new node takes the third. When there
    is no work left, all but one leave."""
    bounds = ("--replicas", "1:3", "--scale-queue", "2", "--scale-idle-s", "3")
    stop = threading.Event()
    with server(nodes, *bounds, "--max-running", "2") as url, ThreadPoolExecutor(24) as pool:
        until(url, ["n0"])

        def load(number: int) -> None:
            while not stop.is_set():
                assert graph(url, number)[0] == 200

        running = [pool.submit(load, number) for number in range(24)]
        until(url, ["n0", "n0"])
        nodes.start("n2", slots=2)
        until(url, ["n0", "n0", "n2"])
        stop.set()
        for one in running:
            one.result()
        # A replica that left did so without an error, so health no longer lists it.
        deadline = time.monotonic() + 90
        while len(health(url)["engines"]) > 1:
            assert time.monotonic() < deadline, health(url)
            time.sleep(0.2)


def test_how_many_replicas_are_wanted() -> None:
    """A table of replicas, queued calls, idle seconds and the wanted number."""
    config = ClusterConfig(least=1, most=3, queue=8, idle_s=60)
    table = [(1, 8, 0, 1), (1, 9, 0, 2), (3, 99, 0, 3), (2, 0, 59, 2), (2, 0, 60, 1), (1, 0, 60, 1)]
    for now, queued, idle_s, expected in table:
        assert wanted(config, now, queued, idle_s) == expected
    assert wanted(config, 0, 0, 0) == 1
