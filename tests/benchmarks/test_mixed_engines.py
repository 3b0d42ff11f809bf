"""The benchmark of chats beside summaries runs, here on an engine without weights."""

from __future__ import annotations

import pytest

from bench.micro import mixed_engines
from bench.micro.mixed_engines import Beside, beside, medians
from weftline.contract.protocol import Criterion


async def test_chats_and_summaries_are_measured(
    echo_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of three summaries arrive in 0.4 s. There is one engine, and all use it."""
    monkeypatch.setattr(mixed_engines, "GAP_S", 0.2)
    found = await beside(echo_url, 1, 19, 0.4, 20, Criterion.THROUGHPUT)
    assert 0 < found.chat_ms <= found.slow_ms
    assert found.summary_s > 0
    assert found.leave_one == 0.0


def test_results_are_medians() -> None:
    runs = [Beside(3.0, 9.0, 1.0, 1.0), Beside(1.0, 8.0, 2.0, 0.5), Beside(2.0, 7.0, 3.0, 0.0)]
    assert medians(runs) == {"chat_ms": 2.0, "slow_ms": 8.0, "summary_s": 2.0, "leave_one": 0.5}
