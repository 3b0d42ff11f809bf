"""Our scheduler keeps a model's state where prompts part, in vLLM's own plan."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = 40  # tokens of each sibling's own; 200 or 400 stand before them, in blocks of 16
LEFT = 200 % 16  # behind the last whole block of those


@pytest.mark.timeout(300)
def test_states_are_kept_where_prompts_go_on(smollm2_directory: Path, vllm_python: str) -> None:
    """In our plan a prompt finds the states that it goes on with.

    The first of three siblings keeps the state at the last whole block that they have in common,
    and both others find it. vLLM alone keeps it there with the second, which computes all. A prompt
    with two borders keeps a state at each. The next turn of a conversation finds its state in a
    full pool, if its context is kept or ended last: vLLM evicted the state while it had all else.
    """
    path = os.pathsep.join((str(ROOT / "engine"), str(ROOT / "client"), str(ROOT)))
    program = [vllm_python, str(Path(__file__).with_name("state_plan.py"))]
    done = subprocess.run(
        [*program, str(smollm2_directory)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    whole, part = 200 + OWN, LEFT + OWN
    assert found == {
        "with": {"s": whole, "ss": part, "sss": part},
        "without": {"s": whole, "ss": whole, "sss": part},
        "levels": {"deep 1": 400 + OWN, "deep 2": OWN, "beside": part},
        "next turn": [16 + OWN, 16 + OWN],
    }
