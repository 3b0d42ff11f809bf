"""A database that is stopped: it takes connections, and answers nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.database import Databases
from tests.cluster.servers import ClusterServer
from tests.cluster.test_servers import opened, running, value
from tests.null.asgi import call

CHAT = {"messages": [{"role": "user", "content": "one two"}]}
LEASE_S = 5.0


@contextmanager
def stopped(stores: Databases) -> Iterator[None]:
    """SIGSTOP for every process of the PostgreSQL."""
    main = stores.server.get_pid()
    assert main is not None
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    pids = [main, *map(int, children)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def readiness(server: ClusterServer, status: int) -> dict[str, object]:
    """Wait until /health/ready says this status, and return its body."""
    async with asyncio.timeout(60):
        while True:
            answer = await server.http.get("/health/ready")
            if answer.status_code == status:
                found: dict[str, object] = answer.json()
                return found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_server_whose_database_is_stopped(
    stores: Databases, tmp_path: Path, count: int
) -> None:
    """It is not ready, and says why. Chats without a session and values that it has are answered as
    before; what needs the store is refused. No request waits for the database: all are answered
    while it is stopped. The log has a line about it, and one when it is back; nothing is lost.
    """
    async with running(stores, tmp_path, "--lease-s", f"{LEASE_S:g}", count=count) as servers:
        server, *_ = servers
        id = await opened(server.http, call("one", "one {{output:x}}", x="a"))
        assert await value(server.http, id, "a") == "one "
        with stopped(stores):
            body = await readiness(server, 503)
            assert body["store"] == "unavailable" and body["reasons"]
            await asyncio.sleep(LEASE_S)  # its lease has ended, as far as it knows
            known, unknown = ({"session_id": one, "semantic_var_id": "a"} for one in (id, "s_0"))
            requests = [
                ("/v1/chat/completions", CHAT),
                ("/v1/get", known),
                ("/v1/get", unknown),
                ("/v1/session", {}),
            ]
            asked = [server.http.post(path, json=body) for path, body in requests for _ in range(8)]
            answers = await asyncio.gather(*asked)
            found = [answer.status_code for answer in answers]
            assert found == [200] * 16 + [503] * 16, found
            assert all("retry-after" in answer.headers for answer in answers[16:])
        for one in servers:
            assert (await readiness(one, 200))["status"] == "ready"
        fresh = await opened(server.http, call("two", "two {{output:x}}", x="a"))
        assert await value(servers[-1].http, fresh, "a") == "two "
        assert await value(servers[-1].http, id, "a") == "one "
        for one in servers:
            lines = one.log.read_text().splitlines()
            about = [line for line in lines if "ERROR" in line or "WARNING" in line]
            assert sum("the lease cannot be renewed" in line for line in about) == 1, about
            assert len(about) <= 4, about
