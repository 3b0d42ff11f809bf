"""Kernels compile for GPUs that are not there. The interpreter cannot check this.

A process of its own compiles them, because this one only interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.kernels.compilation import TOOLS, all_faults, current, faults, jobs

if not (TOOLS / "cuobjdump").is_file():
    pytest.skip("this Triton brings no tools for a GPU's programs", allow_module_level=True)

SHAPES = ("Llama-3-8B bfloat16 sm_90", "Gemma-3-1B float32 sm_89", ", bfloat16 sm_90")
_COMPILE = """
import json, sys
from tests.kernels.compilation import compiled, jobs
wanted = sys.argv[1:]
print(json.dumps({job.name: compiled(job) for job in jobs() if job.name in wanted}))
"""


def test_kernels_compile_as_the_summary_says(tmp_path: Path) -> None:
    """Those of a Llama on an H200, and float32 heads of 256 on a GPU with little shared memory. Two
    programs with wide tiles fit the 227 KB of an H200, and use the full rate of its tensor cores.
    """
    chosen = {job.name: job for job in jobs() if job.name.endswith(SHAPES)}
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, *chosen],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(chosen) == 10
    assert [x for name, job in chosen.items() for x in faults(job, found[name], newest=True)] == []
    wide = found["attend wide, Llama-3-8B bfloat16 sm_90"]
    assert wide["products"] == "wgmma" and 2 * wide["shared"] < 227 << 10


def test_the_committed_summary_is_of_these_kernels() -> None:
    """After a change to a kernel or a launch, run `make gpu-compile`, and commit what it writes."""
    assert all_faults(current()) == []


def test_what_is_wrong_with_a_kernel_is_named() -> None:
    """It does not fit, spills, multiplies without tensor cores, or loads in small pieces."""
    job = next(job for job in jobs() if "OPT-2.7B bfloat16 sm_89" in job.name)
    good = {
        "registers": 255,
        "spilled": 0,
        "shared": 99 << 10,
        "products": "mma.sync",
        "loads_of_16_bytes": 8,
    }
    assert faults(job, good, newest=True) == []
    bad = {"shared": (99 << 10) + 1, "spilled": 8, "products": "none", "loads_of_16_bytes": 0}
    said = faults(job, good | bad, newest=True)
    assert [one.removeprefix(f"{job.name}: ") for one in said] == [
        "101377 bytes of shared memory do not fit",
        "spills 8 bytes a thread",
        "its products are not on tensor cores",
        "keys and values are not loaded 16 bytes at a time",
    ]
    assert len(faults(job, good | bad, newest=False)) == 3
    assert len(faults(replace(job, may_spill=True), good | bad, newest=True)) == 3
