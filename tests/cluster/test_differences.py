"""Servers of one store whose clocks differ, or that cannot reach each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.database import Databases
from tests.cluster.servers import ClusterServer
from tests.cluster.test_servers import opened, value
from tests.null.asgi import call
from tests.ports import free_port

WRONG_S = 600.0


@pytest.mark.parametrize("ahead_s", [WRONG_S, -WRONG_S])
async def test_a_clock_that_is_ten_minutes_off(
    stores: Databases, tmp_path: Path, ahead_s: float
) -> None:
    """Times are the database's: no lease ends early or late, each server says when a session was
    opened, and another one goes on with it.
    """
    wrong = ClusterServer(stores.address(), tmp_path / "wrong.log", ahead_s=ahead_s)
    right = ClusterServer(stores.address(), tmp_path / "right.log")
    try:
        await asyncio.gather(wrong.start(), right.start())
        id = await opened(wrong.http, call("one", "one {{output:x}}", x="a"))
        assert await value(right.http, id, "a") == "one "
        off = "SELECT abs(opened - extract(epoch FROM clock_timestamp())) FROM weftline.sessions"
        assert stores.run(off)[0][0] < 60
        [(now,)] = stores.run("SELECT extract(epoch FROM clock_timestamp())::float8")
        [row] = (await wrong.http.get("/v1/sessions")).json()["sessions"]
        assert abs(row["opened"] - now) < 60
        assert stores.run("SELECT count(*) FROM weftline.servers WHERE NOT fenced") == [(2,)]
        await wrong.kill()
        assert await value(right.http, id, "a") == "one "
        assert stores.run("SELECT epoch FROM weftline.sessions") == [(2,)]
    finally:
        await asyncio.gather(wrong.http.aclose(), right.http.aclose())
        await asyncio.gather(wrong.kill(), right.kill())


async def test_servers_that_reach_the_database_but_not_each_other(
    stores: Databases, tmp_path: Path
) -> None:
    """Each keeps its sessions. A request for a session of the other one fails, and may be sent
    again. A closed one is answered from the store.
    """
    servers = [
        ClusterServer(
            stores.address(),
            tmp_path / f"{at}.log",
            "--address",
            f"http://127.0.0.1:{free_port()}",
            "--lease-s",
            "1",
        )
        for at in range(2)
    ]
    first, second = servers
    try:
        await asyncio.gather(*(one.start() for one in servers))
        id = await opened(first.http, call("one", "one {{output:x}}", x="a"))
        assert await value(first.http, id, "a") == "one "
        body = {"session_id": id, "semantic_var_id": "a"}
        answer = await second.http.post("/v1/get", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "EngineUnavailable")
        assert "retry-after" in answer.headers
        assert (await second.http.get("/v1/sessions")).json()["sessions"] == []
        assert await value(first.http, id, "a") == "one "
        assert stores.run("SELECT epoch FROM weftline.sessions") == [(1,)]
        assert (await first.http.delete(f"/v1/session/{id}")).status_code == 200
        shown = await second.http.get(f"/v1/session/{id}/variable/a")
        assert (shown.status_code, shown.json()["value"]) == (200, "one ")
    finally:
        await asyncio.gather(*(one.http.aclose() for one in servers))
        await asyncio.gather(*(one.kill() for one in servers))
