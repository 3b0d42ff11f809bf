"""A vector store in one SQLite file, with sqlite-vec's distance function; the default store.

Every search compares the query with all vectors of its tenant, so the result is exact. apsw brings
its own SQLite, because many builds of Python's sqlite3 module cannot load an extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import sqlite_vec

from weftline_engine.services.retrieval.arrays import Array
from weftline_engine.services.retrieval.core import MAX_ITEMS, InputRefused
from weftline_engine.services.retrieval.stores import Document, NotAStore

SCHEMA = """
CREATE TABLE IF NOT EXISTS tenants (
    tenant TEXT PRIMARY KEY, dimensions INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
    tenant TEXT NOT NULL, id TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL,
    vector BLOB NOT NULL, PRIMARY KEY (tenant, id)
);
"""
BUSY_MS = 5000  # another process may hold the file


class SqliteTable:
    """The documents of all tenants in the file `path`, which is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(BUSY_MS)
            self._db.enable_load_extension(True)
            self._db.load_extension(sqlite_vec.loadable_path())
            self._db.enable_load_extension(False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(SCHEMA)
        except (apsw.Error, OSError) as error:
            raise NotAStore(f"{path} cannot be used as a store: {error}") from None

    def ingest(self, tenant: str, documents: Sequence[Document], vectors_ND: Array) -> None:
        """Add or replace the documents in one transaction. Raises Refused for another width."""
        rows = [
            (tenant, one.id, one.text, json.dumps(one.metadata), vector_D.tobytes())
            for one, vector_D in zip(documents, vectors_ND, strict=True)
        ]
        with self._transaction():
            self._check_width(tenant, int(vectors_ND.shape[1]), claim=True)
            self._db.executemany(
                "INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO UPDATE "
                "SET text = excluded.text, metadata = excluded.metadata, vector = excluded.vector",
                rows,
            )

    def search(
        self, tenant: str, vector_D: Array, k: int, equal: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """The nearest documents, by cosine similarity. Equal scores are ordered by id."""
        self._check_width(tenant, len(vector_D), claim=False)
        where, bound = _condition(equal)
        rows = self._db.execute(
            "SELECT id, text, metadata, 1 - vec_distance_cosine(vector, ?) AS score "
            f"FROM documents WHERE tenant = ?{where} ORDER BY score DESC, id LIMIT ?",
            (np.ascontiguousarray(vector_D).tobytes(), tenant, *bound, k),
        )
        return [
            (Document(id, text, json.loads(metadata)), 0.0 if score is None else score)
            for id, text, metadata, score in rows
        ]

    def delete(self, tenant: str, ids: Sequence[str]) -> int:
        before = self._db.total_changes()
        with self._transaction():
            self._db.executemany(
                "DELETE FROM documents WHERE tenant = ? AND id = ?", [(tenant, id) for id in ids]
            )
        return self._db.total_changes() - before

    def fetch(self, tenant: str, ids: Sequence[str]) -> list[Document]:
        query = "SELECT id, text, metadata FROM documents WHERE tenant = ? AND id = ?"
        found = (self._db.execute(query, (tenant, id)).fetchone() for id in ids)
        return [Document(row[0], row[1], json.loads(row[2])) for row in found if row is not None]

    def matching(self, tenant: str, equal: Mapping[str, Any]) -> list[str]:
        """The ids of the documents with this metadata."""
        where, bound = _condition(equal)
        query = f"SELECT id FROM documents WHERE tenant = ?{where} ORDER BY id LIMIT ?"
        return [row[0] for row in self._db.execute(query, (tenant, *bound, MAX_ITEMS))]

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the block is written, or nothing. A full disk has ended the transaction already:
        to roll it back again would hide the reason.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _check_width(self, tenant: str, width: int, *, claim: bool) -> None:
        """Raise Refused unless the tenant's vectors have this width; the first ones decide it."""
        if claim:
            self._db.execute("INSERT OR IGNORE INTO tenants VALUES (?, ?)", (tenant, width))
        row = self._db.execute(
            "SELECT dimensions FROM tenants WHERE tenant = ?", (tenant,)
        ).fetchone()
        if row is not None and row[0] != width:
            raise InputRefused(
                f"the store holds vectors of {row[0]} numbers and got {width}: use the embedder "
                "that filled it"
            )


def _condition(equal: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The end of a WHERE clause for this metadata, and its values."""
    where = "".join(" AND json_extract(metadata, ?) = ?" for _ in equal)
    return where, [part for name, value in equal.items() for part in (_path(name), value)]


def _path(name: str) -> str:
    """The JSON path of a name of metadata."""
    return "$." + json.dumps(name)
