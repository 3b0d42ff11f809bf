"""A store that cannot be written: nothing new is accepted, and what runs goes on."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Server, call
from tests.null.journal.test_restart import running
from tests.waits import until
from weftline.errors import InvalidRequest, StorageFull
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine
from weftline_server.commands.retrieval_tables import factories, from_tables
from weftline_server.journal import writer
from weftline_server.journal.store import JournalStore, JournalStoreConfig
from weftline_server.session import events as ev


class Held(NullEngine):
    """A null engine that begins nothing until `go`. So the disk may take as long as it likes to
    write what comes before.
    """

    def __init__(self) -> None:
        super().__init__(NullConfig())
        self._held: list[api.Op] | None = []

    def submit(self, op: api.Op) -> None:
        if self._held is None:
            super().submit(op)
        else:
            self._held.append(op)

    def hold(self) -> None:
        self._held = []

    def go(self) -> None:
        held, self._held = self._held or (), None
        for op in held:
            super().submit(op)


def is_broken(server: Server) -> bool:
    journal = server.service.registry.journal
    assert journal is not None
    return bool(journal._ledger.error)


async def check_refusal_and_recovery(
    server: Server, engine: Held, break_it: Callable[[], Any], mend_it: Callable[[], Any]
) -> list[str]:
    """A session runs while the disk breaks. It ends in memory; nothing new is accepted. When the
    disk is mended new work is accepted, and what happened in memory is on disk.
    """
    id = await server.session()
    await server.submit(
        id,
        call("one", "one {{output:x}}", x="a"),
        call("two", "{{input:x}}two and some more {{output:y}}", x="a", y="b"),
    )
    break_it()
    engine.go()
    await until(lambda: is_broken(server))
    refused = await server.http.post("/v1/session")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_full")
    assert refused.headers["retry-after"] == "2"
    ready = await server.http.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
    assert ready.json()["store"] == "unavailable" and "Error" in ready.json()["reasons"]["store"]
    chat = {"messages": [{"role": "user", "content": "a"}], "model": "null"}
    assert (await server.http.post("/v1/chat/completions", json=chat)).status_code == 200
    more = await server.submit(id, call("three", "three {{output:x}}", x="c"))
    assert (more.status_code, more.json()["error"]["type"]) == (503, "StorageFull")
    assert (await server.get(id, "b")).json()["value"] == "one two and some more "
    mend_it()
    await until(lambda: not is_broken(server))
    assert (await server.http.get("/health/ready")).status_code == 200
    other = await server.session()
    answer = await server.submit(other, call("four", "four {{output:x}}", x="a"))
    assert answer.status_code == 200
    return [id, other]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.05)


async def test_a_full_disk_and_space_again(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: the write-ahead log may not grow. SQLite reports its error,
    EFBIG, as a full disk.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "store"

    def full() -> None:
        size = Path(f"{path}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))

    def space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    try:
        engine = Held()
        async with running(path, also={"null": lambda: engine}) as server:
            first, second = await check_refusal_and_recovery(server, engine, full, space)
    finally:
        space()
    async with running(path) as server:
        assert (await server.get(first, "b")).json()["value"] == "one two and some more "
        assert (await server.get(second, "a")).json()["value"] == "four "
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


MODULE = """
import sys

def work(mark, text):
    with open(mark, "a") as file:
        file.write("x")
    return "done " + text
"""


def function(out: str, mark: Path) -> dict[str, Any]:
    """A step that may run once, on the value of `a`."""
    args = {"mark": {"value": str(mark)}, "text": {"var": "a"}}
    return {"kind": "function", "function": "work", "args": args, "out": out, "effects": "once"}


async def test_a_step_that_runs_once_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes due while another program holds a lock on the file. It begins when that can be
    recorded, and a stream of its variable gets the value. Another session ends meanwhile, and the
    server, too, where the store stays away: the step did not begin, and runs in the next run.
    """
    monkeypatch.setattr("weftline_server.journal.store.BUSY_MS", 50)
    (tmp_path / "ours.py").write_text(MODULE)
    table = {"name": "work", "call": "ours:work", "path": str(tmp_path)}
    also = factories(from_tables({"function": [table]}))
    path, first, second = tmp_path / "store", tmp_path / "first", tmp_path / "second"
    one = call("one", "one two three four {{output:x}}", x="a")

    async def due(server: Server, id: str) -> None:
        """Wait until the step is due, whose start is not recorded."""
        session = server.service.registry.find("local", id)
        await until(lambda: is_broken(server) and session.variables["a"].settled)
        journal = server.service.registry.journal
        assert journal is not None
        await until(lambda: any(one.is_patient for one in journal._ledger._waiting))

    engine = Held()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        async with running(path, also={**also, "null": lambda: engine}) as server:
            id = await server.session()
            await server.submit(id, one, steps=[function("b", first)])
            other.execute("BEGIN EXCLUSIVE")
            engine.go()
            stream = asyncio.create_task(server.get(id, "b", stream=True))
            await due(server, id)
            assert not first.exists() and not stream.done()
            other.execute("COMMIT")
            events = (await stream).text
            assert 'event: value\ndata: {"value": "done one two three four "}' in events
            assert first.read_text() == "x"
            engine.hold()
            id = await server.session()
            await server.submit(id, one, steps=[function("b", second)])
            other.execute("BEGIN EXCLUSIVE")
            engine.go()
            await due(server, id)
            assert not second.exists()
        other.execute("COMMIT")
        assert not second.exists()
    async with running(path, also=also) as server:
        assert (await server.get(id, "b")).json()["value"] == "done one two three four "
    assert (first.read_text(), second.read_text()) == ("x", "x")


async def test_a_stream_of_a_step_that_failed_by_the_store_has_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was given up, as its records were too many for the memory. Several servers share
    such a store, and a reader does not come back for what has failed.
    """
    never = NullConfig(latency=LatencyProfile(step_s=3600.0))
    async with running(tmp_path / "store", never) as server:
        journal = server.service.registry.journal
        assert journal is not None
        monkeypatch.setattr(journal, "is_shared", True)
        id = await server.session()
        await server.submit(id, call("one", "one {{output:x}}", x="a"))
        session = server.service.registry.find("local", id)
        (primitive,), error = session.primitives, StorageFull("the session could not be kept")
        failed = ev.PrimitiveFailed(now=session.opened, primitive=primitive, error=error)
        server.driver.apply(session, failed)
        events = (await server.get(id, "a", stream=True)).text
        assert "event: error" in events and "could not be kept" in events
        watched = (await server.submit(id, watch=["a"])).text
        assert "event: failed" in watched and "could not be kept" in watched


async def test_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program holds a write lock on the file. After a bounded wait it is as a full disk."""
    monkeypatch.setattr("weftline_server.journal.store.BUSY_MS", 50)
    path, engine = tmp_path / "store", Held()
    async with running(path, also={"null": lambda: engine}) as server:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            first, _ = await check_refusal_and_recovery(
                server,
                engine,
                lambda: other.execute("BEGIN EXCLUSIVE"),
                lambda: other.execute("COMMIT"),
            )
    async with running(path) as server:
        assert (await server.get(first, "b")).json()["value"] == "one two and some more "


async def test_too_much_for_memory_gives_up_the_sessions_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose records were given up ends in memory, takes no more calls, and is not found
    after a restart. Half a session is never found.
    """
    monkeypatch.setattr("weftline_server.journal.store.BUSY_MS", 50)
    monkeypatch.setattr(writer, "MOST_HELD", 1000)
    path, engine = tmp_path / "store", Held()
    async with running(path, also={"null": lambda: engine}) as server:
        id = await server.session()
        journal = server.service.registry.journal
        assert journal is not None
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            await server.submit(id, call("one", "x" * 2000 + "{{output:x}}", x="a"))
            other.execute("BEGIN EXCLUSIVE")
            engine.go()
            assert len((await server.get(id, "a")).json()["value"]) == 2000
            await until(lambda: journal._ledger._lost)
            other.execute("COMMIT")
        await until(lambda: not is_broken(server))
        more = await server.submit(id, call("two", "two {{output:x}}", x="b"))
        assert (more.status_code, more.json()["error"]["type"]) == (503, "StorageFull")
        other_id = await server.session()
    async with running(path) as server:
        assert (await server.get(id, "a")).status_code == 404
        assert [one.id for one in server.service.registry] == [other_id]


def test_a_file_has_one_server(tmp_path: Path) -> None:
    """A second server on the same file does not start. It may when the first one has ended."""
    store = JournalStore(JournalStoreConfig(path=str(tmp_path / "f")))
    with pytest.raises(InvalidRequest, match="another program uses"):
        JournalStore(JournalStoreConfig(path=str(tmp_path / "f")))
    store.close()
    JournalStore(JournalStoreConfig(path=str(tmp_path / "f"))).close()


async def test_a_damaged_session_does_not_keep_the_others_away(tmp_path: Path) -> None:
    """One of three sessions has a broken record: it is unknown after the restart, and the other two
    are there."""
    path = tmp_path / "store"
    async with running(path) as server:
        ids = [await server.session() for _ in range(3)]
        for id in ids:
            await server.submit(id, call("one", "one {{output:x}}", x="a"))
            await server.get(id, "a")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE records SET body = X'00' WHERE session = 2")
        db.commit()
    async with running(path) as server:
        found = [(await server.get(id, "a")).status_code for id in ids]
        assert found == [200, 404, 200]
