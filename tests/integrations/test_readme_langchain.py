"""The program in integrations/langchain/README.md runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.programs import run_here

README = Path(__file__).parents[2] / "integrations" / "langchain" / "README.md"


def test_the_programs_run(
    echo_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first prints one text twice, plain and accelerated. The second prints what begins early,
    and the last is a chat in a graph of LangGraph.
    """
    pytest.importorskip("langgraph.graph")
    monkeypatch.setenv("WEFTLINE_BASE_URL", echo_url)
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    first, second, third = programs
    names = run_here(first, tmp_path)
    printed = capsys.readouterr().out
    half = len(printed) // 2
    assert printed[:half] == printed[half:]
    assert "user: Sum up in a sentence:\nThe weft crosses the warp." in printed
    run_here(second, tmp_path, names)
    printed = capsys.readouterr().out
    assert "client  it calls 'center', which may do anything" in printed
    answers = run_here(third, tmp_path, names)
    state = answers["graph"].get_state(answers["thread"])
    assert [message.type for message in state.values["messages"]] == ["human", "ai"] * 2
