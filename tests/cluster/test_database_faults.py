"""The database is away, or refuses to write: nothing new is accepted, and what runs goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.database import Databases
from tests.cluster.servers import ClusterServer
from tests.cluster.test_servers import opened, running, value
from tests.null.asgi import call
from tests.waits import WAIT_S

# A server on a machine with a load of 17 did not renew a lease of 2 s in time, before any fault.
LONG_LEASE_S = 5.0


def restarted(stores: Databases) -> tuple[Callable[[], None], Callable[[], None]]:
    return stores.server.stop, stores.server.start


def read_only(stores: Databases) -> tuple[Callable[[], None], Callable[[], None]]:
    def set(how: str) -> None:
        stores.run(f"ALTER SYSTEM SET default_transaction_read_only = {how}")
        stores.run("SELECT pg_reload_conf()")

    return lambda: set("on"), lambda: set("off")


FULL = """
CREATE OR REPLACE FUNCTION weftline.is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file "base/1/2": No space left on device'
    USING ERRCODE = 'disk_full';
END $$
"""


def full(stores: Databases) -> tuple[Callable[[], None], Callable[[], None]]:
    """Tables cannot grow, as on a disk without space. What is in place can be changed."""
    tables = ("sessions", "records", "keys")

    def fill() -> None:
        stores.run(FULL)
        for table in tables:
            stores.run(
                f"CREATE TRIGGER is_full BEFORE INSERT ON weftline.{table} "
                "EXECUTE FUNCTION weftline.is_full()"
            )

    def empty() -> None:
        for table in tables:
            stores.run(f"DROP TRIGGER is_full ON weftline.{table}")

    return fill, empty


async def refused(server: ClusterServer) -> None:
    """Wait until the server accepts nothing new, and check how it says so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await server.http.post("/v1/session")
            if answer.status_code != 200:
                break
            await asyncio.sleep(0.05)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")
    assert answer.headers["retry-after"] == "2"


def owners_of(stores: Databases, ids: list[str]) -> list[int]:
    """The numbers of the servers that own these sessions."""
    owners = dict(stores.run("SELECT id, owner FROM weftline.sessions"))
    return [owners[id] for id in ids]


@pytest.mark.parametrize("fault", [restarted, read_only, full])
async def test_a_database_that_comes_back(
    stores: Databases, tmp_path: Path, fault: Callable[..., tuple[Callable[[], None], ...]]
) -> None:
    """It is broken for longer than a lease. Each server refuses what is new, and gives no value
    that is not stored. Then both go on with their own sessions: nobody has taken any over.
    """
    break_it, mend_it = fault(stores)
    # The calls take two seconds, so that they run when the database is broken.
    options = ("--null-step-s", "0.3", "--lease-s", f"{LONG_LEASE_S:g}")
    async with running(stores, tmp_path, *options, count=2) as servers:
        words = "one two three four five six {{output:x}}"
        ids = [await opened(one.http, call("one", words, x="a")) for one in servers]
        owners = owners_of(stores, ids)
        try:
            await asyncio.to_thread(break_it)
            for one, id in zip(servers, ids, strict=True):
                await refused(one)
                body = {"session_id": id, "semantic_var_id": "a"}
                answer = await one.http.post("/v1/get", json=body)
                assert answer.status_code == 503, answer.text
            await asyncio.sleep(1.2 * LONG_LEASE_S)
        finally:
            await asyncio.to_thread(mend_it)
        for one, id in zip(servers, ids, strict=True):
            assert await value(one.http, id, "a") == "one two three four five six "
        assert owners == owners_of(stores, ids)
        for one in servers:
            async with asyncio.timeout(WAIT_S):
                while (await one.http.post("/v1/session")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        fresh = await opened(servers[0].http, call("two", "fresh {{output:x}}", x="a"))
        assert await value(servers[1].http, fresh, "a") == "fresh "
        assert all("has taken over" not in one.log.read_text() for one in servers)
