"""`make gpu` runs dry on the CPU: every part ends, and writes its rows as they come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

COMMAND = (sys.executable, "-W", "ignore", "-m", "bench.gpu", "--dry-run")


def test_a_dry_run_of_all_parts(tmp_path: Path) -> None:
    """Kernels equal their references. A decode step is captured and launched, a prefix is shared in
    three ways, and a token is computed again and copied back."""
    done = subprocess.run(
        [*COMMAND, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.glob("*/gpu.json")
    report = json.loads(path.read_text())
    parts = ("checks", "steps", "attention", "prefix", "swaps")
    assert {name: report[name]["ended"] for name in parts} == dict.fromkeys(parts, "complete")
    assert {row["kernel"] for row in report["checks"]["rows"]} == {
        "rms_norm", "add_rms_norm", "rope_store", "silu_mul", "kv_store",
    }  # fmt: skip
    (_, decode, prompt, engine) = report["steps"]["rows"]
    assert {"captured_ms", "launched_ms", "floor_ms"} < set(decode)
    assert prompt["prompt"] == 24 and engine["engine_ms"] > 0
    assert {"tree_ms", "blocks_shared_ms", "off_ms"} < set(report["prefix"]["rows"][1])
    (swap,) = report["swaps"]["rows"]
    assert swap["computed_tokens_per_s"] > 0 < swap["copied_tokens_per_s"]


def test_a_part_that_does_not_exist_is_named() -> None:
    """And so are those that do."""
    done = subprocess.run([*COMMAND, "stepps"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no such part: stepps; there are checks, steps, attention, prefix, swaps" in done.stderr
