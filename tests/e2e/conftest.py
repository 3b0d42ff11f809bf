"""Servers for the end-to-end tests, each shared by all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cores import keep_to_own_cores
from weftline.local import local_server

keep_to_own_cores()


@pytest.fixture(scope="session")
def slow_url() -> Iterator[str]:
    """A server that echoes one word every 50 ms, slow enough for a test to act in between."""
    with local_server("--engine", "null", "--null-step-s", "0.05") as url:
        yield url
