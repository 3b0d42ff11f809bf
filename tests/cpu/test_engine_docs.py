"""The programs of docs/engine.md print what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from weftline_server import cli

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\nprints[^\n]*\n\n```\n(.*?)```", PAGE, re.S)


def test_there_is_a_program_and_a_picture_of_each() -> None:
    """docs/engine.md has three programs, and every picture that it shows exists."""
    assert len(PROGRAMS) == PAGE.count("```python") == 3
    for name in re.findall(r"!\[.*?\]\((.*?)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / name).read_text().startswith("<svg")


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=["drafts", "tree", "work list"])
def test_a_program_prints_what_is_shown(program: str, output: str) -> None:
    """Each program of docs/engine.md, run as it stands, prints the output below it."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (output, "")


def test_the_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """It parses: with --help added, it prints its usage."""
    [line] = re.findall(r"^    weftline (.*)$", PAGE, re.M)
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(line), "--help"])
    assert ended.value.code == 0
    assert "--load-format" in capsys.readouterr().out
