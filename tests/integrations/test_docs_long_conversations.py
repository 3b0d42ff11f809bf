"""The programs of docs/long-conversations.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.programs import run_here
from tests.integrations.test_tool_loops import called

PAGE = Path(__file__).parents[2] / "docs" / "long-conversations.md"
LANGCHAIN, LLAMA = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
RULES = [
    ("summarise the conversation", "The Rhine was found."),
    ("found Danube", "Both are long."),
    ("found Rhine", called("Danube")),
    ("Compare", called("Rhine")),
]


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (
            LANGCHAIN,
            "Here is a summary of the conversation to date:\n\nThe Rhine was found.\n\n"
            "found Danube\nBoth are long.\n",
        ),
        (LLAMA, "The Rhine was found.\n"),
    ],
)
def test_a_program_prints_what_it_should(
    program: str,
    printed: str,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEFTLINE_BASE_URL", url)
    run_here(program, tmp_path)
    assert capsys.readouterr().out == printed
