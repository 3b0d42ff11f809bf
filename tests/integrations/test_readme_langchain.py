"""The program in integrations/langchain/README.md runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "integrations" / "langchain" / "README.md"


def test_the_program_runs(
    echo_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints the same text twice: once plainly, once as one graph."""
    monkeypatch.setenv("WEFTLINE_BASE_URL", echo_url)
    [program] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path / "program.py"
    path.write_text(program)
    runpy.run_path(str(path))
    printed = capsys.readouterr().out
    half = len(printed) // 2
    assert printed[:half] == printed[half:]
    assert "user: Sum up in a sentence:\nThe weft crosses the warp." in printed
