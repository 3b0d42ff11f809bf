"""The ten minutes of a GPU, on the null engine: runs, figures, and an end that comes early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gpu import agents
from bench.micro._agent_load import Timed

CUT = ["--dry-run", "--agents", "3", "--lengths", "0.003", "--pauses", "0.02"]


def test_the_runs_come_in_turns() -> None:
    """Four sessions fit, so the semaphores are of four and of six. Ours comes second, so that an
    early end leaves a pair."""
    assert [one.name for one in agents.plan(4)] == [
        "vllm",
        "weftline in vllm",
        "vllm and host memory",
        "vllm, 4 at once",
        "vllm, 6 at once",
    ]


def test_the_figures_of_a_run() -> None:
    """Two requests of 2 s and 4 s in half a minute, with 0.1 s between their tokens, and one that
    failed."""
    good = [Timed(0.0, 1.0, 2.0, 11), Timed(1.0, 4.0, 5.0, 11)]
    assert agents.figures([*good, Timed(0.0, error="gone")], 30.0) == {
        "requests_per_minute": 4.0,
        "failed": 1,
        "mean_s": 3.0,
        "p90_s": 4.0,
        "ttft_p90_s": 3.0,
        "between_p99_ms": 100,
        "error": "gone",
    }
    assert agents.figures([], 30.0) == {"requests_per_minute": 0.0, "failed": 0}


def test_a_dry_run_measures_every_system(tmp_path: Path) -> None:
    """Each has requests and no failure, and the file has all rows."""
    words = [*CUT, "--measured", "3", "--budget", "200", "--folder", str(tmp_path)]
    assert agents.main(words) == 0
    rows = json.loads((tmp_path / "agents-on-gpu.json").read_text())["rows"]
    assert len(rows) == 5
    assert all(row["requests_per_minute"] > 0 and row["failed"] == 0 for row in rows)


def test_an_early_end_leaves_runs_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without time for one run each row says why, and the exit code is not 0."""
    words = [*CUT, "--measured", "60", "--budget", "30", "--folder", str(tmp_path)]
    assert agents.main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2] for line in lines if line.startswith("system")] == [
        "left_out the budget has ended"
    ] * 5


def test_sessions_fit_into_the_model() -> None:
    """As many as there are agents, with enough turns, and none longer than 32,768 tokens."""
    args = agents._parser().parse_args([])
    found = agents._sessions(args)
    assert len(found) == 16
    assert all(len(one.turns) >= 16 and agents._peak(one) <= 32_768 for one in found)
