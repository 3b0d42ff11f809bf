"""Real servers with the real model, one for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from weftline.local import local_server


@pytest.fixture(scope="session")
def model_url(smollm2_directory: Path) -> Iterator[str]:
    """A server with SmolLM2-135M-Instruct in float32, whose greedy answers are known."""
    with local_server(str(smollm2_directory), "--dtype", "float32") as url:
        yield url


@pytest.fixture(scope="session")
def slow_url() -> Iterator[str]:
    """A server that echoes one word every 50 ms, so that a test can come in between."""
    with local_server("--engine", "null", "--null-step-s", "0.05") as url:
        yield url
