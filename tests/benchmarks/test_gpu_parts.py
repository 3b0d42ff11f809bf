"""`make gpu` runs dry on the CPU: every part ends, and writes its rows as they come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from bench.gpu import apps
from bench.gpu.figures import DECODING, name_of
from bench.gpu.llama import MODES

COMMAND = (sys.executable, "-W", "ignore", "-m", "bench.gpu", "--dry-run")
MAKEFILE = Path(__file__).parents[2] / "Makefile"


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
    assert prompt["prompt"] == 24
    assert engine["engine_ms"] > 0 < engine["engine_one_by_one_ms"]
    assert {"tree_ms", "blocks_shared_ms", "off_ms"} < set(report["prefix"]["rows"][1])
    (swap,) = report["swaps"]["rows"]
    assert swap["computed_tokens_per_s"] > 0 < swap["copied_tokens_per_s"]


def test_a_part_that_does_not_exist_is_named() -> None:
    """And so are those that do."""
    done = subprocess.run([*COMMAND, "stepps"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    known = "checks, steps, attention, prefix, swaps"
    assert f"no such part: stepps; there are {known}" in done.stderr


@pytest.mark.parametrize("figure", DECODING)
def test_a_dry_run_of_a_figure_that_decodes(figure: int, tmp_path: Path) -> None:
    """`make gpu-figures` replays one point in the three ways, and writes it. The figures of
    applications run in tests/kernels/test_gpu_figures.py."""
    command = (*COMMAND[:-2], "bench.gpu.figures", "--dry-run", "--fig", str(figure))
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.glob("*/*.json")
    assert path.name == name_of(figure)
    (row,) = json.loads(path.read_text())["rows"]
    for mode in MODES:
        assert row[mode]["mean_latency_s"] > 0 and row[mode]["part_of_roof"] > 0


def test_make_replays_every_figure() -> None:
    """Those that decode and those of applications, each once."""
    (line,) = (x for x in MAKEFILE.read_text().splitlines() if x.startswith("FIGURES :="))
    assert sorted(map(int, line.split()[2:])) == sorted((*apps.FIGURES, *DECODING))
