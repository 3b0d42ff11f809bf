"""A server that keeps its sessions in a file: what the next run of the server finds and does."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Server, call
from tests.waits import until
from weftline_engine.api import Engine
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine
from weftline_server.app import create_app
from weftline_server.commands.retrieval_tables import factories, from_tables
from weftline_server.config import ServerConfig
from weftline_server.journal import journal
from weftline_server.journal.store import Change, JournalStore, JournalStoreConfig
from weftline_server.journal.writer import Item, Writer


@asynccontextmanager
async def running(
    path: Path,
    engine: NullConfig = NullConfig(),  # noqa: B008 - frozen
    also: Mapping[str, Callable[[], Engine]] = MappingProxyType({}),
) -> AsyncIterator[Server]:
    """One run of a server with a store."""
    config = ServerConfig(sessions=JournalStoreConfig(path=str(path)))
    app = create_app(config, {"null": lambda: NullEngine(engine), **also})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://t")
        )
        yield Server(app, http)


async def test_values_and_errors_of_an_earlier_run_are_found(tmp_path: Path) -> None:
    """After a restart, a session still has its values and its errors, and accepts new calls."""
    async with running(tmp_path / "store") as server:
        id = await server.session()
        answer = await server.submit(
            id,
            call("one", "hello {{output:x}}", x="a"),
            call("two", "{{input:x}} again {{output:y}}", x="a", y="b"),
            call(
                "bad",
                "no json {{output:z}}",
                z={"in_out": "out", "semantic_var_id": "c", "transforms": [{"op": "json"}]},
            ),
        )
        assert answer.status_code == 200
        value = (await server.get(id, "b")).json()["value"]
        failed = (await server.get(id, "c")).json()
    async with running(tmp_path / "store") as server:
        assert (await server.get(id, "b")).json()["value"] == value
        assert (await server.get(id, "c")).json() == failed
        answer = await server.submit(id, call("more", "{{input:x}}{{output:y}}", x="b", y="d"))
        assert answer.status_code == 200
        assert (await server.get(id, "d")).json()["value"] == value


async def status(server: Server, session: str, variable: str) -> str:
    """The state of a variable, without waiting."""
    answer = await server.http.get(f"/v1/session/{session}/variable/{variable}")
    return str(answer.json()["status"])


async def cut(server: Server) -> None:
    """End a run as a kill would, for the store: nothing is recorded from now on."""
    journal = server.service.registry.journal
    assert journal is not None
    await journal.close()


async def test_what_had_not_ended_runs_again(tmp_path: Path) -> None:
    """The first call has its value on disk, the second runs, the third waits. The next run keeps
    the first value and makes the others.
    """
    calls = [
        call("one", "one {{output:x}}", x="a"),
        call("two", "{{input:x}}two words more {{output:y}}", x="a", y="b"),
        call("three", "{{input:x}}{{output:y}}", x="b", y="c"),
    ]
    slow = NullConfig(latency=LatencyProfile(step_s=0.05))
    async with running(tmp_path / "store", slow) as server:
        id = await server.session()
        await server.submit(id, *calls)
        assert (await server.get(id, "a")).json()["value"] == "one "
        await cut(server)
    async with running(tmp_path / "store") as server:
        assert await status(server, id, "a") == "ready"
        assert (await server.get(id, "c")).json()["value"] == "one two words more "
        (journal,) = [server.service.registry.journal]
        assert journal is not None and journal.run == 2


def recorded(path: Path) -> int:
    """How many records are on disk."""
    with closing(sqlite3.connect(path)) as store:
        (found,) = store.execute("SELECT count(*) FROM records").fetchone()
    return int(found)


@pytest.mark.parametrize("linger_s", [0.0, 3600.0])
async def test_records_wait_for_the_first_that_is_needed(
    linger_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of calls that no client asks for are written together: soon, or with the first
    value that is given. What runs once is written at once."""
    monkeypatch.setattr(journal, "LINGER_S", linger_s)
    path, go = tmp_path / "store", tmp_path / "go"
    (tmp_path / "ours.py").write_text(MODULE)
    table = {"name": "work", "call": "ours:work", "path": str(tmp_path)}
    also = factories(from_tables({"function": [table]}))
    waits = function("a", mark="", go=str(go)) | {"effects": "none"}
    reads = [call(out, "{{input:x}} {{output:y}}", x="a", y=out) for out in "bc"]
    async with running(path, also=also) as server:
        id = await server.session()
        await server.submit(id, *reads, steps=[waits])
        assert recorded(path) == 1  # the submit, which was acknowledged
        go.touch()
        (session,) = server.service.registry
        while not all(session.variables[out].value for out in "abc"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if linger_s:
            assert recorded(path) == 1
            assert (await server.get(id, "a")).json()["value"] == "done"
            assert recorded(path) == 4
        while recorded(path) < 4:  # noqa: ASYNC110 - a thread writes them
            await asyncio.sleep(0.01)
        once = function("d", mark="", go=str(go)) | {"effects": "once"}
        await server.submit(id, steps=[once])
        while recorded(path) < 7:  # noqa: ASYNC110 - the submit, its beginning and its end
            await asyncio.sleep(0.01)


async def test_a_submit_that_is_sent_again_finds_its_calls(tmp_path: Path) -> None:
    """Its answer was lost with the server. With another body the key is refused."""
    body = {"calls": [call("one", "one {{output:x}}", x="a")], "get": ["a"], "close": True}
    key = {"Idempotency-Key": "k"}
    never = NullConfig(latency=LatencyProfile(step_s=3600.0))
    async with running(tmp_path / "store", never) as server:
        first = asyncio.create_task(server.http.post("/v1/submit", json=body, headers=key))
        while not any(session.tasks for session in server.service.registry):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (lost,) = server.service.registry
        await server.service.registry.kept(lost)
        await cut(server)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    async with running(tmp_path / "store") as server:
        assert [session.id for session in server.service.registry] == [lost.id]
        again = await server.http.post("/v1/submit", json=body, headers=key)
        assert again.status_code == 200, again.text
        assert again.json()["session_id"] == lost.id
        assert again.json()["values"] == {"a": "one "}
        assert len(server.service.registry) == 0  # it was closed
        other = await server.http.post("/v1/submit", json=body | {"graph": True}, headers=key)
        assert (other.status_code, other.json()["error"]["type"]) == (409, "KeyReused")
    async with running(tmp_path / "store") as server:  # and it can be looked at
        assert await status(server, lost.id, "a") == "ready"
        again = await server.http.post("/v1/submit", json=body, headers=key)
        assert again.json()["values"] == {"a": "one "}


async def test_a_kill_at_any_commit_takes_no_submit_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is committed alone, and the file is copied after each commit. On every copy a
    server is asked again, with the key: it has one session, and gives its values.

    The session was on disk before the key. A kill between the two made another session; that was
    one kill of 200.
    """
    copies: list[Path] = []
    write = JournalStore.write

    def copied(store: JournalStore, changes: Sequence[Change]) -> None:
        write(store, changes)
        copies.append(tmp_path / f"copy{len(copies)}")
        with closing(sqlite3.connect(copies[-1])) as copy:
            store._db.backup(copy)

    class OneByOne(Writer):
        """Commits each entry when it is put."""

        def put(self, items: tuple[Item, ...]) -> None:
            super().put(items)
            self._commit_all(True)

    body = {
        "calls": [
            call("one", "one {{output:x}}", x="a"),
            call("two", "{{input:x}}two {{output:y}}", x="a", y="b"),
        ],
        "get": ["a", "b"],
    }
    key = {"Idempotency-Key": "k"}
    values = {"a": "one ", "b": "one two "}
    with monkeypatch.context() as patched:
        patched.setattr(JournalStore, "write", copied)
        patched.setattr(journal, "Writer", OneByOne)
        async with running(tmp_path / "store") as server:
            first = await server.http.post("/v1/submit", json=body, headers=key)
            assert first.json()["values"] == values
    assert len(copies) == 3  # the submit, and the ends of both calls
    for copy in copies:
        async with running(copy) as server:
            again = await server.http.post("/v1/submit", json=body, headers=key)
            assert again.json()["session_id"] == first.json()["session_id"]
            assert again.json()["values"] == values
            assert len(server.service.registry) == 1


async def test_an_id_that_the_client_chose_still_names_its_session(tmp_path: Path) -> None:
    """After a restart a submit with the same id joins the session, and reads its earlier
    variable."""
    async with running(tmp_path / "store") as server:
        body = {"calls": [call("one", "one {{output:x}}", x="a")]}
        first = await server.http.post("/v1/submit", json={**body, "session_id": "r", "open": True})
    async with running(tmp_path / "store") as server:
        body = {"calls": [call("two", "{{input:x}}two {{output:y}}", x="a", y="b")], "get": ["b"]}
        again = await server.http.post("/v1/submit", json={**body, "session_id": "r", "open": True})
        assert again.json()["session_id"] == first.json()["session_id"]
        assert again.json()["values"] == {"b": "one two "}


async def test_a_request_that_waits_at_the_end_is_told_to_come_back(tmp_path: Path) -> None:
    """SIGTERM closes no session of a store. Its reader gets 503, and the next run has the value."""
    never = NullConfig(latency=LatencyProfile(step_s=3600.0))
    async with running(tmp_path / "store", never) as server:
        id = await server.session()
        await server.submit(id, call("one", "a long text {{output:x}}", x="a"))
        waiting = asyncio.create_task(server.get(id, "a"))
        await until(lambda: server.waiting)
        await server.service.lifecycle.drain(0.0)
        answer = await waiting
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    async with running(tmp_path / "store") as server:
        assert (await server.get(id, "a")).json()["value"] == "a long text "


async def test_a_closed_session_stays_closed(tmp_path: Path) -> None:
    """After a restart, a closed session is still shown, but its variables cannot be read."""
    async with running(tmp_path / "store") as server:
        id = await server.session()
        await server.submit(id, call("one", "one {{output:x}}", x="a"))
        await server.get(id, "a")
        assert (await server.http.delete(f"/v1/session/{id}")).status_code == 200
        unused = await server.session()
        await server.http.delete(f"/v1/session/{unused}")
    async with running(tmp_path / "store") as server:
        assert (await server.get(id, "a")).status_code == 404
        assert await status(server, id, "a") == "ready"
        listed = (await server.http.get("/v1/sessions")).json()["sessions"]
        assert [(row["session_id"], row["state"]) for row in listed] == [(id, "closed")]


async def test_a_function_with_effects_runs_once(tmp_path: Path) -> None:
    """It was sent to its engine and had not ended: it fails, and is not run again. What only had to
    wait runs.
    """
    (tmp_path / "ours.py").write_text(MODULE)
    table = {"name": "work", "call": "ours:work", "path": str(tmp_path), "timeout_s": 30.0}
    also = factories(from_tables({"function": [table]}))
    mark, go = tmp_path / "mark", tmp_path / "go"
    run_once = {"name": "once", "effects": "once"}
    steps = [
        function("a", mark=str(mark), go=str(go)) | run_once,
        function("b", mark="", go=str(go)) | run_once,
        function("c", mark=str(mark), go=str(go), after=["set"]) | run_once,
    ]
    async with running(tmp_path / "store", also=also) as server:
        id = await server.session()
        answer = await server.submit(id, steps=steps)
        assert answer.status_code == 200, answer.text
        while not mark.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        await cut(server)
    assert mark.read_text() == "x"
    go.touch()
    async with running(tmp_path / "store", also=also) as server:
        failed = await server.get(id, "a")
        assert (failed.status_code, failed.json()["error"]["code"]) == (409, "interrupted")
        assert mark.read_text() == "x"
        await server.http.put(f"/v1/session/{id}/variable/set", json={"value": 1})
        assert (await server.get(id, "c")).json()["value"] == "done"
        assert mark.read_text() == "xx"


MODULE = """
import os, time

def work(mark, go):
    with open(mark or os.devnull, "a") as file:
        file.write("x")
    while not os.path.exists(go):
        time.sleep(0.01)
    return "done"
"""


def function(out: str, after: Sequence[str] = (), **args: str) -> dict[str, Any]:
    """A step that calls the operator's function with these values."""
    sources = {name: {"value": value} for name, value in args.items()}
    step = {"kind": "function", "function": "work", "args": sources, "out": out}
    return step | {"after": list(after)}


async def test_vectors_of_an_earlier_run_are_searched_with(tmp_path: Path) -> None:
    """A record has them as base64 text in JSON, as clients read them. A step of the next run reads
    that as it reads the vectors of an embedder.
    """
    also = factories(from_tables({"embedder": [{"name": "words", "model": "null"}]}))
    texts = {"value": ["red fox", "blue whale"]}
    async with running(tmp_path / "store", also=also) as server:
        id = await server.session()
        steps = [{"kind": "embed", "in": texts, "out": "v"}]
        assert (await server.submit(id, steps=steps)).status_code == 200
        value = (await server.get(id, "v")).json()["value"]
        shown = (await server.http.get(f"/v1/session/{id}/variable/v")).json()["value"]
    assert shown == value and isinstance(value["vectors"], str)
    async with running(tmp_path / "store", also=also) as server:
        assert (await server.get(id, "v")).json()["value"] == value
        for name, source in (("kept", {"var": "v"}), ("sent", {"value": value})):
            mean = {"kind": "mean", "parts": [source], "out": name}
            answer = await server.submit(id, steps=[mean])
            assert answer.status_code == 200
        kept, sent = [(await server.get(id, one)).json()["value"] for one in ("kept", "sent")]
    assert kept == sent and (kept["dimensions"], kept["single"]) == (32, True)
