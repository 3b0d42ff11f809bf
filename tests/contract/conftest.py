"""The greedy answers that engines with a model are compared with, computed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cores import keep_to_own_cores

keep_to_own_cores()
pytest.register_assert_rewrite("tests.contract.suite")


@pytest.fixture(scope="session")
def answers(smollm2_directory: Path) -> dict[str, list[str]]:
    from tests.contract.oracle import greedy_answers

    return greedy_answers(smollm2_directory)
