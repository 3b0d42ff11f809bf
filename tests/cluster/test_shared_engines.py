"""Two engines that three servers share: each server sees both, and limits hold at all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.database import Databases
from tests.cluster.servers import ClusterServer, EngineProcess
from tests.cluster.test_servers import opened, running, value
from tests.null.asgi import call
from tests.ports import free_port
from tests.waits import WAIT_S


@asynccontextmanager
async def sharing(
    stores: Databases, folder: Path
) -> AsyncIterator[tuple[list[ClusterServer], list[EngineProcess]]]:
    """Three servers without engines of their own, and two engines that have joined them all."""
    gates = [free_port() for _ in range(3)]
    servers = [
        ClusterServer(
            stores.address(),
            folder / f"{at}.log",
            "--engines-on",
            f"127.0.0.1:{gate}",
            engine=(),
        )
        for at, gate in enumerate(gates)
    ]
    engines = [
        EngineProcess(name, gates, folder / f"{name}.log", "--null-step-s", "0.05")
        for name in ("one", "two")
    ]
    try:
        for engine in engines:
            engine.start()
        await asyncio.gather(*(server.start() for server in servers))
        await asyncio.gather(*(until_engines(one.http, "ready", "ready") for one in servers))
        yield servers, engines
    finally:
        await asyncio.gather(*(one.http.aclose() for one in servers))
        await asyncio.gather(*(one.kill() for one in servers))
        for engine in engines:
            engine.kill()


async def until_engines(http: httpx2.AsyncClient, one: str, two: str) -> None:
    """Wait until the server has the engines in these states."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = (await http.get("/health/ready")).json()["engines"]
            if found == {"one": one, "two": two}:
                return
            await asyncio.sleep(0.05)


async def test_servers_share_the_engines(stores: Databases, tmp_path: Path) -> None:
    """A call of any server runs on them. When a server is killed, the others go on with its call;
    when it is back, the engines join it again. When an engine is killed, the other one is left.
    """
    words = " ".join(f"w{n}" for n in range(30))
    async with sharing(stores, tmp_path) as (servers, engines):
        first, second, third = servers
        ids = [await opened(one.http, call("c", "a b {{output:x}}", x="v")) for one in servers]
        for one, id in zip((second, third, first), ids, strict=True):
            assert await value(one.http, id, "v") == "a b "
        long = await opened(first.http, call("c", f"{words} {{{{output:x}}}}", x="v"))
        await first.kill()
        assert await value(second.http, long, "v") == f"{words} "
        await first.start()
        await until_engines(first.http, "ready", "ready")
        engines[0].kill()
        await asyncio.gather(*(until_engines(one.http, "down", "ready") for one in servers))
        for one in servers:
            id = await opened(one.http, call("c", "c d {{output:x}}", x="v"))
            assert await value(one.http, id, "v") == "c d "


LIMITS = "[registry]\nmax_sessions = 3\n"


async def test_a_tenants_limits_hold_at_all_servers_together(
    stores: Databases, tmp_path: Path
) -> None:
    """With three sessions at one server the tenant may open none at another one, once that one has
    heard of them, until one is closed.
    """
    config = tmp_path / "weftline.toml"
    config.write_text(LIMITS)
    async with running(stores, tmp_path, "--config", str(config), count=2) as (first, second):
        opened = [(await first.http.post("/v1/session")).json()["session_id"] for _ in range(3)]
        await until_status(second.http, 429)
        await first.http.delete(f"/v1/session/{opened[0]}")
        await until_status(second.http, 200)
    assert stores.run("SELECT count(*) FROM weftline.tallies") == [(2,)]


async def until_status(http: httpx2.AsyncClient, status: int) -> None:
    """Open sessions, and close them again, until this is the answer."""
    async with asyncio.timeout(WAIT_S):
        while (answer := await http.post("/v1/session")).status_code != status:
            if answer.status_code == 200:
                await http.delete(f"/v1/session/{answer.json()['session_id']}")
            await asyncio.sleep(0.1)


async def test_advice_is_that_of_all_servers(stores: Databases, tmp_path: Path) -> None:
    """Two servers have compared four calls of a program each. Either adds the counts of both."""

    async def ask(server: ClusterServer, at: int) -> None:
        text = f"Now it is {at} o'clock. " + "The same long text follows. " * 40
        body: dict[str, Any] = {
            "model": "null",
            "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Go."}],
        }
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text

    async with running(stores, tmp_path, count=2) as servers:
        for at in range(5):
            for server in servers:
                await ask(server, at)
        async with asyncio.timeout(WAIT_S):
            while True:
                told = [(await one.http.get("/v1/advice")).json() for one in servers]
                if all(one["advice"] and one["advice"][0]["calls"] == 8 for one in told):
                    break
                await asyncio.sleep(0.1)
        assert [one["total"] for one in told] == [1, 1]
        assert told[0]["advice"][0]["lost_tokens"] == told[1]["advice"][0]["lost_tokens"]
