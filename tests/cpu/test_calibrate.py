"""`weftline doctor --calibrate`: the costs of the KV cache, and the strategies that pay."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline.errors import InvalidRequest
from weftline_engine.api import KvCosts
from weftline_server.commands import calibrate
from weftline_server.schedule.memory.waste import Strategy

# 20 ms and 0.1 ms a token: computing 512 tokens again takes one and a half steps.
COSTS = KvCosts(step_s=0.02, fill_s=1e-4, chunk=384)


def test_a_real_engine_is_measured(
    tiny_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts, says its costs, and both strategies of a CPU pay somewhere."""
    assert calibrate.run(str(tiny_directory)) == 0
    out = capsys.readouterr().out
    assert "prompt tokens" in out and "0 tokens fit there" in out
    assert "preserve" in out and "discard" in out


def test_the_table_says_what_wastes_least() -> None:
    """A context of 512 tokens stays for a tenth of a second and goes for ten."""
    rows = [line.split() for line in calibrate.report(COSTS, 2048).splitlines()]
    [alone] = [row for row in rows if row[:2] == ["512", "0"]]
    assert alone[2:] == ["preserve", "preserve", "discard", "discard", "discard", "discard"]


def test_a_strategy_that_never_pays_is_named() -> None:
    """Copies that take for ever, and copies that are free."""
    slow = KvCosts(step_s=0.02, fill_s=1e-4, chunk=384, copy_s=1.0, host_tokens=4096)
    assert calibrate.never(slow, 2048) == [Strategy.SWAP]
    assert "swap never pays" in calibrate.report(slow, 2048)
    assert calibrate.never(COSTS, 2048) == []
    assert "swap would pay" in calibrate.report(COSTS, 2048)


def test_a_model_that_is_not_here_is_named(tmp_path: Path) -> None:
    """The message says how to get it."""
    with pytest.raises(InvalidRequest, match="weftline pull"):
        calibrate.run("hf:nobody/nothing")
