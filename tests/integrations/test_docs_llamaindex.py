"""The programs of docs/llamaindex.md run unchanged, and so does README's in LlamaIndex."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings

from tests.integrations.programs import run_here
from tests.integrations.recording import recorded

PAGE = Path(__file__).parents[2] / "docs" / "llamaindex.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex's settings are a program's own: empty before it, and forgotten after it."""
    for field in dataclasses.fields(Settings):
        monkeypatch.setattr(Settings, field.name, None)


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize(
    ("number", "submits"), [(0, 0), (1, 1), (2, 1)], ids=["before", "after", "synthesizer"]
)
def test_program(
    echo_url: str,
    number: int,
    submits: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each prints something and fails nowhere. On weftline each is one request for a graph."""
    assert len(PROGRAMS) == 3
    with recorded(echo_url) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        run_here(PROGRAMS[number], tmp_path)
        assert capsys.readouterr().out.strip()
        bodies = proxy.bodies("/v1/submit")
        assert len(bodies) == submits
        assert proxy.bodies("/v1/chat/completions") == []
    if number == 1:
        assert drawn() == sent(bodies[0]["calls"])


@pytest.mark.usefixtures("own_settings")
def test_the_readme(
    echo_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two texts are two calls, and they are one request."""
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"In LlamaIndex:\n\n```python\n(.*?)```", readme, re.DOTALL)
    with recorded(echo_url) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        run_here(program, tmp_path)
        assert capsys.readouterr().out.startswith("user: You are an expert Q&A system")
        (body,) = proxy.bodies("/v1/submit")
        assert ["What crosses the warp?" in str(call) for call in body["calls"]] == [True, True]
        assert proxy.bodies("/v1/chat/completions") == []


def test_a_process_of_its_own(echo_url: str) -> None:
    """The program on weftline ends, and leaves nothing to complain of."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[1]],
        env=os.environ | {"WEFTLINE_BASE_URL": echo_url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def drawn() -> set[tuple[str, str, str]]:
    """Return the arrows of the page's picture: the box at each end, and the text."""
    page = PAGE.read_text(encoding="utf-8")
    [picture] = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    titles = dict(re.findall(r'(\w+)(?:\[|\(\[)"([^"]+)"', picture))
    arrows = re.findall(r"^ *(\w+)(?:\(.*?\))? --(?: (\w+) --)?> (.+)$", picture, re.MULTILINE)
    return {
        (f"{start} {titles[start]}", text, f"{end} {titles[end]}")
        for start, text, ends in arrows
        for end in re.findall(r"(?:^|& )(\w+)", ends)
    }


def sent(calls: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return the same for a submit, with the page's names for the boxes."""
    boxes = {
        call["placeholders"][-1]["semantic_var_id"]: f"s{number} {call['name']}"
        for number, call in enumerate(calls[:-1], 1)
    }
    last = f"c {calls[-1]['name']}"
    found = {(last, "", "answer answer")}
    for number, (call, box) in enumerate(zip(calls, [*boxes.values(), last], strict=True), 1):
        for given in call["placeholders"][:-1]:
            source = {"query_str": "q query_str", "context_str": f"d{number} context_str {number}"}
            variable = given.get("semantic_var_id")
            if variable is None:
                found.add((source[given["name"]], "", box))
            else:
                found.add((boxes[variable], variable, box))
    return found
