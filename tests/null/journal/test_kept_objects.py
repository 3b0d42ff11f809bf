"""The table of responses, conversations and thoughts: bounds, expiry, chains, and its key."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from weftline.errors import InvalidRequest, StorageFull
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.kept_objects import IN_MEMORY, KeptConfig, KeptObjects, SqliteObjects
from weftline_server.journal.store import JournalStore, JournalStoreConfig

NOW = 1000.0


class Clock:
    """A time of day that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def kept(
    config: KeptConfig, clock: Clock, path: str = IN_MEMORY, cipher: Cipher | None = None
) -> AsyncIterator[KeptObjects]:
    made = KeptObjects(config, SqliteObjects(path), clock, cipher)
    try:
        yield made
    finally:
        await made.close()


async def put(objects: KeptObjects, id: str, previous: str = "", text: str = "") -> None:
    await objects.change("t", id, lambda _: {"id": id, "previous": previous, "text": text})


async def there(objects: KeptObjects, *ids: str) -> str:
    """Those of the ids that are there."""
    return "".join([id for id in ids if await objects.find("t", id) is not None])


async def check_the_least_used_go(objects: KeptObjects, clock: Clock) -> None:
    """With room for three: a change is a use, and a read is none."""
    for id in "abc":
        await put(objects, id)
        clock.now += 1
    assert await objects.find("t", "b") == {"id": "b", "previous": "", "text": ""}
    await put(objects, "a", text="again")
    clock.now += 1
    await put(objects, "d")
    assert await there(objects, *"abcd") == "acd"
    await objects.change("u", "e", lambda _: {})  # of another tenant
    assert await there(objects, *"abcde") == "acd"


async def check_chains(objects: KeptObjects, clock: Clock) -> None:
    """The oldest comes first. A link that is gone ends the chain. What is read as a part of a
    chain stays for longer once half of its time is over."""
    await put(objects, "a")
    await put(objects, "b", "a")
    clock.now += 60
    await put(objects, "c", "b")
    assert [one["id"] for one in await objects.chain("t", "c")] == ["a", "b", "c"]
    assert await objects.chain("u", "c") == []
    clock.now += 99
    assert [one["id"] for one in await objects.chain("t", "b")] == ["a", "b"]
    clock.now += 2
    assert await there(objects, *"abc") == "ab"
    await objects.change("t", "a", lambda _: None)
    assert [one["id"] for one in await objects.chain("t", "b")] == ["b"]


async def check_many(objects: KeptObjects, clock: Clock) -> None:
    """Those of the tenant that are there come at once. Once half of their time is over, they stay
    for longer."""
    for id in "abc":
        await put(objects, id)
    await objects.change("u", "d", lambda _: {})
    clock.now += 60
    found = await objects.find_all("t", ["b", "d", "a", "e"])
    assert {id: one["id"] for id, one in found.items()} == {"a": "a", "b": "b"}
    clock.now += 99
    assert await there(objects, *"abc") == "ab"
    assert set(await objects.find_all("t", [f"{n}" for n in range(9_999)] + ["a"])) == {"a"}


async def check_changes_at_once(objects: KeptObjects) -> None:
    """None is lost."""
    await objects.change("t", "n", lambda _: {"n": 0})
    more = [objects.change("t", "n", lambda old: {"n": (old or {})["n"] + 1}) for _ in range(20)]
    await asyncio.gather(*more)
    assert await objects.find("t", "n") == {"n": 20}
    assert await objects.change("t", "new", lambda old: old) is None


async def test_the_least_used_go() -> None:
    clock = Clock()
    async with kept(KeptConfig(max_objects=3), clock) as objects:
        await check_the_least_used_go(objects, clock)


async def test_chains() -> None:
    clock = Clock()
    async with kept(KeptConfig(expiry_s=100.0), clock) as objects:
        await check_chains(objects, clock)


async def test_many() -> None:
    clock = Clock()
    async with kept(KeptConfig(expiry_s=100.0), clock) as objects:
        await check_many(objects, clock)


async def test_changes_at_once() -> None:
    async with kept(KeptConfig(), Clock()) as objects:
        await check_changes_at_once(objects)


async def test_a_change_that_fails_changes_nothing() -> None:
    """Its error is that of the request."""

    def fails(old: object) -> None:
        raise InvalidRequest("no")

    async with kept(KeptConfig(), Clock()) as objects:
        await put(objects, "a")
        with pytest.raises(InvalidRequest):
            await objects.change("t", "a", fails)
        assert await there(objects, "a") == "a"


async def test_a_file_that_is_sealed(tmp_path: Path) -> None:
    """No text is in it. An object opens only as itself."""
    path = str(tmp_path / "store")
    JournalStore(JournalStoreConfig(path=path)).close()
    async with kept(KeptConfig(), Clock(), path, Cipher(bytes(32))) as objects:
        await put(objects, "a", text="secret")
        with closing(sqlite3.connect(path)) as db, db:
            [(body,)] = db.execute("SELECT body FROM objects").fetchall()
            db.execute("INSERT INTO objects SELECT tenant, 'b', '', body, 1, expires FROM objects")
        assert b"secret" not in body
        assert (await objects.find("t", "a") or {})["text"] == "secret"
        with pytest.raises(InvalidRequest, match="another key"):
            await objects.find("t", "b")


async def test_a_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has a typed error, and the next one works."""
    monkeypatch.setattr("weftline_server.journal.kept_objects.BUSY_S", 0.05)
    path = str(tmp_path / "store")
    JournalStore(JournalStoreConfig(path=path)).close()
    async with kept(KeptConfig(), Clock(), path) as objects:
        with closing(sqlite3.connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageFull, match="locked"):
                await put(objects, "a")
        await put(objects, "a")
        assert await there(objects, "a") == "a"
