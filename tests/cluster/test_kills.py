"""Three servers are killed and stopped, again and again, under a workload of graphs."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.database import Databases
from tests.cluster.servers import LEASE_S, ClusterServer
from tests.cluster.test_servers import running
from tests.null.asgi import call

FULL = os.environ.get("FAULTS") == "full"
KILLS = 50 if FULL else 4
STOPS = 20 if FULL else 2
CLIENTS = 6


class Application:
    """One run of five calls and a value that the client sets, by a client that does not give up.

    Every answer that it gets is remembered: `acknowledged` says that the submit was accepted.
    """

    def __init__(self, http: httpx2.AsyncClient, name: str) -> None:
        self.http = http
        self.name = name
        self.session = ""
        self.values: dict[str, set[str]] = {}
        self.resent = 0

    async def post(self, path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
        """Send until there is an answer. A request with a key is sent with it each time."""
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            try:
                answer = await self.http.post(path, json=body, headers=headers)
            except httpx2.TransportError:
                self.resent += 1
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 503:
                await asyncio.sleep(0.05)
                continue
            assert answer.status_code == 200, (answer.status_code, answer.text)
            found: dict[str, Any] = answer.json()
            return found

    async def run(self) -> None:
        words = f"{self.name} said this"
        calls = [
            call("a", f"{words} {{{{output:x}}}}", x="a"),
            call("b", "{{input:x}} b {{output:y}}", x="a", y="b"),
            call("c", "{{input:x}} c {{output:y}}", x="a", y="c"),
            call("d", "{{input:x}} {{input:y}} d {{output:z}}", x="b", y="c", z="d"),
            call("e", "{{input:x}} {{input:s}} e {{output:y}}", x="d", s="s", y="e"),
        ]
        opened = await self.post("/v1/submit", {"calls": calls}, uuid.uuid4().hex)
        self.session = opened["session_id"]
        await self.see("b")
        while True:
            try:
                url = f"/v1/session/{self.session}/variable/s"
                answer = await self.http.put(url, json={"value": "set"})
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
                continue
            assert answer.status_code in (200, 409), answer.text  # 409: an earlier one was taken
            break
        await self.see("e")
        for variable in "abcd":
            await self.see(variable)

    async def see(self, variable: str) -> None:
        body = {"session_id": self.session, "semantic_var_id": variable}
        found = await self.post("/v1/get", body)
        self.values.setdefault(variable, set()).add(found["value"])

    @property
    def expected(self) -> dict[str, set[str]]:
        a = f"{self.name} said this "
        b, c = f"{a} b ", f"{a} c "
        d = f"{b} {c} d "
        return {"a": {a}, "b": {b}, "c": {c}, "d": {d}, "e": {f"{d} set e "}}


class Roaming:
    """An HTTP client that sends each request to another server, as a balancer without memory does.

    It stands for httpx2's client in `Application`, which repeats what fails.
    """

    def __init__(self, servers: list[ClusterServer], chance: random.Random) -> None:
        self._servers = servers
        self._chance = chance

    async def post(self, path: str, **more: Any) -> httpx2.Response:
        return await self._chance.choice(self._servers).http.post(path, **more)

    async def put(self, path: str, **more: Any) -> httpx2.Response:
        answer = await self._chance.choice(self._servers).http.put(path, **more)
        if answer.status_code == 503:
            raise httpx2.ConnectError("not now")  # Application repeats it then
        return answer


async def workload(
    servers: list[ClusterServer], chance: random.Random, harm: list[Any]
) -> list[Application]:
    """What clients have done while the `harm` came over the servers, one after the other."""
    done: list[Application] = []
    goes_on = True

    async def client(number: int) -> None:
        run = 0
        while goes_on:
            http: Any = Roaming(servers, chance)
            application = Application(http, f"client {number} run {run} {uuid.uuid4().hex}")
            await application.run()
            done.append(application)
            run += 1

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    try:
        for one in harm:
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            broken = [one for one in clients if one.done()]
            assert not broken, broken
            await one()
        goes_on = False
        async with asyncio.timeout(120):
            await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return done


def check(stores: Databases, done: list[Application]) -> None:
    """Every application that was acknowledged has the values of its echoes, no client saw another
    one, and no submit was taken twice.
    """
    assert len(done) >= CLIENTS
    for application in done:
        assert application.values == application.expected, application.name
    found = stores.run("SELECT count(*), count(DISTINCT id) FROM weftline.sessions")
    sessions = len({one.session for one in done})
    assert sessions == len(done) and found == [(sessions, sessions)]


async def test_kills_lose_nothing_that_was_acknowledged(stores: Databases, tmp_path: Path) -> None:
    """One of three servers is killed, and comes back a moment later."""
    chance = random.Random(0)
    async with running(stores, tmp_path, "--null-step-s", "0.002") as servers:

        async def harm() -> None:
            one = chance.choice(servers)
            await one.kill()
            await asyncio.sleep(chance.uniform(0.0, 2 * LEASE_S))
            await one.start()

        check(stores, await workload(servers, chance, [harm] * KILLS))


async def test_what_a_stopped_server_had_is_taken_over_once(
    stores: Databases, tmp_path: Path
) -> None:
    """One of three servers is stopped for longer than its lease, and goes on."""
    chance = random.Random(1)
    async with running(stores, tmp_path, "--null-step-s", "0.002") as servers:

        async def harm() -> None:
            one = chance.choice(servers)
            one.freeze()
            await asyncio.sleep(LEASE_S * chance.uniform(1.2, 2.0))
            one.thaw()

        check(stores, await workload(servers, chance, [harm] * STOPS))
