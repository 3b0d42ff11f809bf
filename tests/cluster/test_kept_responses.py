"""Responses and conversations of three servers with one database: any of them answers for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.database import Databases
from tests.cluster.test_servers import SLOW, running
from tests.null.journal.test_kept_objects import (
    Clock,
    check_chains,
    check_changes_at_once,
    check_many,
    check_the_least_used_go,
)
from tests.null.kept import events_of, said, text_of
from weftline_server.cluster.database import ClusterDatabase
from weftline_server.journal.kept_objects import KeptConfig, KeptObjects
from weftline_server.journal.store import JournalStoreConfig

BACK = {"input": "a b c d e f g h", "background": True}
WORDS = "user: a b c d e f g h\nassistant: "


@asynccontextmanager
async def kept(stores: Databases, config: KeptConfig, clock: Clock) -> AsyncIterator[KeptObjects]:
    """The table of a new database."""
    with stores.opened("f"):
        pass
    database = ClusterDatabase(JournalStoreConfig(path=stores.address("f")))
    await database.open()
    try:
        yield KeptObjects(config, database.objects, clock)
    finally:
        await database.close()


async def test_the_least_used_go(stores: Databases) -> None:
    clock = Clock()
    async with kept(stores, KeptConfig(max_objects=3), clock) as objects:
        await check_the_least_used_go(objects, clock)


async def test_chains(stores: Databases) -> None:
    clock = Clock()
    async with kept(stores, KeptConfig(expiry_s=100.0), clock) as objects:
        await check_chains(objects, clock)


async def test_many(stores: Databases) -> None:
    clock = Clock()
    async with kept(stores, KeptConfig(expiry_s=100.0), clock) as objects:
        await check_many(objects, clock)


async def test_changes_at_once(stores: Databases) -> None:
    async with kept(stores, KeptConfig(), Clock()) as objects:
        await check_changes_at_once(objects)


async def respond(http: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def ended(http: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    """The response at its end, as a client that comes back for it gets it."""
    async with asyncio.timeout(60):
        while True:
            answer = await http.get(f"/v1/responses/{id}")
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                if found["status"] not in ("queued", "in_progress"):
                    return found
            await asyncio.sleep(0.1)


async def test_any_server_goes_on(stores: Databases, tmp_path: Path) -> None:
    """A response of the first is continued at the second and read at the third, and so is a
    conversation, to which all add at once."""
    async with running(stores, tmp_path) as servers:
        first, second, third = [one.http for one in servers]
        made = await respond(first, input="Go")
        more = await respond(second, input="On", previous_response_id=made["id"])
        assert text_of(more) == f"user: Go\nassistant: {text_of(made)}\nuser: On\nassistant: "
        answer = await third.get(f"/v1/responses/{more['id']}/input_items?order=asc")
        assert said(answer.json()["data"]) == [
            "user: Go", f"assistant: {text_of(made)}", "user: On",
        ]  # fmt: skip
        talk = (await first.post("/v1/conversations", json={})).json()["id"]
        await asyncio.gather(
            *(respond(one, input="Hi", conversation=talk) for one in (first, second, third))
        )
        items = (await second.get(f"/v1/conversations/{talk}/items?order=asc")).json()["data"]
        assert [one["role"] for one in items] == ["user", "assistant"] * 3


async def test_one_in_the_background_of_another_server(stores: Databases, tmp_path: Path) -> None:
    """Any server polls it, follows it and cancels it."""
    async with running(stores, tmp_path, *SLOW) as servers:
        first, second, third = [one.http for one in servers]
        begun, other = await respond(first, **BACK), await respond(first, **BACK)
        path = f"/v1/responses/{begun['id']}"
        text, made = await asyncio.gather(
            third.get(f"{path}?stream=true&starting_after=2"), ended(second, begun["id"])
        )
        events = events_of(text.text)
        assert events[-1]["response"] == made and text_of(made) == WORDS
        numbers = [one["sequence_number"] for one in events]
        assert numbers == list(range(3, 3 + len(events)))
        answer = await second.post(f"/v1/responses/{other['id']}/cancel")
        assert answer.json()["status"] in ("cancelled", "completed")
        begun = await respond(first, **BACK)
        answer = await second.post(f"/v1/responses/{begun['id']}/cancel")
        assert answer.json()["status"] == "cancelled"
        assert (await third.get(f"/v1/responses/{begun['id']}")).json() == answer.json()


async def test_a_server_that_dies(stores: Databases, tmp_path: Path) -> None:
    """Another one makes the response that ran there."""
    async with running(stores, tmp_path, *SLOW) as servers:
        begun = await respond(servers[0].http, **BACK)
        await servers[0].kill()
        made = await ended(servers[1].http, begun["id"])
        assert (made["status"], text_of(made)) == ("completed", WORDS)
        answer = await servers[2].http.get(f"/v1/responses/{begun['id']}")
        assert answer.json() == made
