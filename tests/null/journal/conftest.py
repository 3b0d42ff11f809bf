"""The stores of these tests are files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.null.journal.places import Files, Stores


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    """Empty stores."""
    return Files(tmp_path)
