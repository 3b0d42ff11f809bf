"""The program in integrations/langchain/README.md runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "integrations" / "langchain" / "README.md"


def test_the_programs_run(
    echo_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first prints one text twice, plain and as one graph; the second what runs where."""
    monkeypatch.setenv("WEFTLINE_BASE_URL", echo_url)
    first, second, third = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = run(first, tmp_path)
    printed = capsys.readouterr().out
    half = len(printed) // 2
    assert printed[:half] == printed[half:]
    assert "user: Sum up in a sentence:\nThe weft crosses the warp." in printed
    run(second, tmp_path, names)
    printed = capsys.readouterr().out
    assert "client  what it calls, 'center', may do anything" in printed
    run(third, tmp_path, names)
    assert "user: Sum up in a sentence:\nThe weft crosses the warp." in capsys.readouterr().out


def run(program: str, folder: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """The program's names; it has a file, so that its functions have a source."""
    path = folder / "program.py"
    path.write_text(program)
    return runpy.run_path(str(path), names)
