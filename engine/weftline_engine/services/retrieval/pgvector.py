"""A vector store in PostgreSQL with the extension pgvector.

Every op is one transaction, so a server that stops in the middle leaves nothing half-written. An op
whose connection breaks is tried once more on a new one: what it writes may be written twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector

from weftline_engine.services.retrieval.arrays import Array
from weftline_engine.services.retrieval.core import MAX_ITEMS, InputRefused, Unavailable
from weftline_engine.services.retrieval.stores import Document, NotAStore

T = TypeVar("T")

CONNECT_S = 5
SCHEMA = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS weftline_tenants (
    tenant text PRIMARY KEY, dimensions integer NOT NULL
);
CREATE TABLE IF NOT EXISTS weftline_documents (
    tenant text NOT NULL, id text NOT NULL, text text NOT NULL, metadata jsonb NOT NULL,
    vector vector NOT NULL, PRIMARY KEY (tenant, id)
);
"""
# Two servers that start at the same time would both create the extension, so they take this lock.
LOCK = "SELECT pg_advisory_xact_lock(7310868201)"
INSERT = (
    "INSERT INTO weftline_documents VALUES (%s, %s, %s, %s, %s) ON CONFLICT (tenant, id) DO UPDATE "
    "SET text = excluded.text, metadata = excluded.metadata, vector = excluded.vector"
)
# The distance to a vector of zeros is NaN, which counts as a similarity of 0.
SEARCH = """
SELECT id, text, metadata, coalesce(nullif(1 - (vector <=> %s), 'NaN'), 0) AS score
FROM weftline_documents WHERE tenant = %s AND metadata @> %s
ORDER BY score DESC, id COLLATE "C" LIMIT %s
"""


class PgTable:
    """The documents of all tenants in the database at `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None
        try:
            self._connect()
        except psycopg.Error as error:
            # The error's message may contain the address, so only its class is shown.
            raise NotAStore(
                f"the PostgreSQL of this store cannot be used ({type(error).__name__}): see that "
                "it runs, that its address is right, and that it has the extension pgvector"
            ) from None

    def ingest(self, tenant: str, documents: Sequence[Document], vectors_ND: Array) -> None:
        """Add or replace the documents in one transaction. Raises Refused for another width."""
        if any("\0" in one.id + one.text + json.dumps(one.metadata) for one in documents):
            raise InputRefused("PostgreSQL keeps no text with the character NUL")
        rows = [
            (tenant, one.id, one.text, json.dumps(one.metadata), vector_D)
            for one, vector_D in zip(documents, vectors_ND, strict=True)
        ]

        def write(db: psycopg.Connection[Any]) -> None:
            width = int(vectors_ND.shape[1])
            claim = "INSERT INTO weftline_tenants VALUES (%s, %s) ON CONFLICT DO NOTHING"
            db.execute(claim, (tenant, width))
            _check_width(db, tenant, width)
            with db.cursor() as cursor:
                cursor.executemany(INSERT, rows)

        self._run(write)

    def search(
        self, tenant: str, vector_D: Array, k: int, equal: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """The nearest documents, by cosine similarity. Equal scores are ordered by id."""

        def read(db: psycopg.Connection[Any]) -> list[tuple[Document, float]]:
            _check_width(db, tenant, len(vector_D))
            bound = (vector_D, tenant, json.dumps(equal), k)
            return [(Document(*row[:3]), float(row[3])) for row in db.execute(SEARCH, bound)]

        return self._run(read)

    def delete(self, tenant: str, ids: Sequence[str]) -> int:
        query = "DELETE FROM weftline_documents WHERE tenant = %s AND id = ANY(%s)"
        return self._run(lambda db: db.execute(query, (tenant, _known(ids))).rowcount)

    def fetch(self, tenant: str, ids: Sequence[str]) -> list[Document]:
        query = (
            "SELECT id, text, metadata FROM weftline_documents WHERE tenant = %s AND id = ANY(%s)"
        )

        def read(db: psycopg.Connection[Any]) -> dict[str, Document]:
            return {row[0]: Document(*row) for row in db.execute(query, (tenant, _known(ids)))}

        found = self._run(read)
        return [found[id] for id in ids if id in found]

    def matching(self, tenant: str, equal: Mapping[str, Any]) -> list[str]:
        """The ids of the documents with this metadata."""
        query = (
            "SELECT id FROM weftline_documents WHERE tenant = %s AND metadata @> %s "
            'ORDER BY id COLLATE "C" LIMIT %s'
        )
        bound = (tenant, json.dumps(equal), MAX_ITEMS)
        return self._run(lambda db: [row[0] for row in db.execute(query, bound)])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            made = psycopg.connect(self._dsn, connect_timeout=CONNECT_S)
            try:
                with made.transaction():
                    made.execute(LOCK)
                    made.execute(SCHEMA)
                register_vector(made)
                made.commit()
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection

    def _run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """The result of `work` in one transaction. Raises Unavailable if there is no server."""
        for again in (True, False):
            try:
                db = self._connect()
                with db.transaction():
                    return work(db)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self.close()
                if not again:
                    raise Unavailable(
                        f"PostgreSQL does not answer ({type(error).__name__}): try again later"
                    ) from None
        raise AssertionError("the second attempt returns or raises")


def _check_width(db: psycopg.Connection[Any], tenant: str, width: int) -> None:
    query = "SELECT dimensions FROM weftline_tenants WHERE tenant = %s"
    row = db.execute(query, (tenant,)).fetchone()
    if row is not None and row[0] != width:
        raise InputRefused(
            f"the store holds vectors of {row[0]} numbers and got {width}: use the embedder that "
            "filled it"
        )


def _known(ids: Sequence[str]) -> list[str]:
    """The ids that PostgreSQL can hold."""
    return [id for id in ids if "\0" not in id]
