"""A server with a store is killed with signal 9, again and again, under a workload of graphs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.killed import Killed
from tests.faults.sizes import KILLS
from tests.null.asgi import call

CLIENTS = 8


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


async def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Clients run applications one after the other while the server is killed. Every application
    that was acknowledged ends with the values of its echoes, and no client ever saw another value.
    """
    server = Killed(tmp_path, "--null-step-s", "0.002", "--keep-closed", "60")
    chance = random.Random(0)
    done: list[Application] = []
    goes_on = True

    async def client(number: int) -> None:
        run = 0
        limits = httpx2.Limits(max_connections=4)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            while goes_on:
                application = Application(http, f"client {number} run {run}")
                await application.run()
                done.append(application)
                run += 1

    await server.start()
    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    try:
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.02, 0.3))
            assert not any(one.done() for one in clients), [one for one in clients if one.done()]
            await server.kill()
            await server.start()
        goes_on = False
        await asyncio.gather(*clients)
        assert len(done) >= KILLS and sum(one.resent for one in done) >= KILLS
        for application in done:
            assert application.values == application.expected, application.name
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await server.kill()
    with closing(sqlite3.connect(server.store)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (sessions,) = db.execute("SELECT count(*) FROM sessions").fetchone()
    assert sessions == len({one.session for one in done}), "a submit was taken twice"
