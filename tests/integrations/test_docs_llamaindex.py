"""The programs of docs/llamaindex.md, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.recording import recorded

PAGE = Path(__file__).parents[2] / "docs" / "llamaindex.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("number", "submits"), [(0, 0), (1, 1), (2, 1)], ids=["before", "after", "synthesizer"]
)
def test_program(echo_url: str, number: int, submits: int) -> None:
    """Each prints something and fails nowhere; those on weftline are one request for a graph."""
    assert len(PROGRAMS) == 3
    with recorded(echo_url) as proxy:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS[number]],
            env=os.environ | {"WEFTLINE_BASE_URL": proxy.url},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert len(proxy.bodies("/v1/submit")) == submits
        assert proxy.bodies("/v1/chat/completions") == []
