"""Runs pool_story.py in vLLM's interpreter, on vLLM's own block pool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import weftline_engine


def test_the_pool_evicts_the_dead_first(vllm_python: str, tmp_path: Path) -> None:
    """pool_story.py, on vLLM's own block pool and in its interpreter."""
    (tmp_path / "weftline_engine").symlink_to(weftline_engine.__path__[0])
    story = Path(__file__).with_name("pool_story.py")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [vllm_python, story], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
