"""A conversation is replaced by its summary, and the real engine computes nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compaction import check_langchain

BLOCK = 16  # tokens of the engine's KV cache that are shared as a whole


@pytest.mark.parametrize("reads", [True, False])
def test_nothing_is_computed_twice(reads: bool, model_url: str, smollm2_directory: Path) -> None:
    check_langchain(model_url, smollm2_directory, BLOCK, reads=reads)
