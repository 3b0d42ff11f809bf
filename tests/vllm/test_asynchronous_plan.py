"""Our scheduler plans the next step while a GPU computes the last one, as vLLM's own does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_next_step_is_planned_before_the_last_ones_tokens(
    smollm2_directory: Path, vllm_python: str
) -> None:
    """Each request decodes in the step behind its prompt, whose token is not there yet.

    A scheduler that waits for the token plans an empty step instead, and takes twice as many. The
    order is that of the priorities. The empty steps come where the answers are complete and their
    tokens are not there: vLLM finds out only then that places are free.
    """
    path = os.pathsep.join((str(ROOT / "engine"), str(ROOT / "client"), str(ROOT)))
    program = [vllm_python, str(Path(__file__).with_name("asynchronous_plan.py"))]
    done = subprocess.run(
        [*program, str(smollm2_directory)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["class"] == "AsyncWeftlineScheduler"
    urgent, rest = ("fourth", "first"), ("second", "third")
    assert found["steps"] == [
        dict.fromkeys(urgent, 20),
        dict.fromkeys(urgent, 1),
        dict.fromkeys(urgent, 1),
        {},
        dict.fromkeys(rest, 20),
        dict.fromkeys(rest, 1),
        dict.fromkeys(rest, 1),
        {},
    ]
