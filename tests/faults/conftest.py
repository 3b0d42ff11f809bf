"""Fixtures of the fault tests: the server in this process as in tests/null, and real servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.null.conftest import serve as serve


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collector: its full collections take 0.1 s for each 10,000 calls in memory, and
    come in any turn. The server's process has another rhythm than a test.
    """
    gc.disable()
    yield
    gc.enable()
