"""The programs of docs/index.md, start.md and migrate.md run, but for the server's address."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from llama_index.core import Settings

from tests.integrations.programs import run_here
from tests.integrations.recording import recorded

DOCS = Path(__file__).parents[2] / "docs"
# Of each page's programs: how many requests of a graph, and of OpenAI's chats, they send.
PROGRAMS = {
    "index.md": [(1, 0)],
    "start.md": [(1, 0), (1, 0), (0, 1)],
    "migrate.md": [(0, 1), (0, 1)],
}


@pytest.mark.parametrize(
    ("page", "number"), [(page, i) for page, sent in PROGRAMS.items() for i in range(len(sent))]
)
def test_program(
    page: str,
    number: int,
    echo_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints something, and sends as many requests as the page says."""
    for field in dataclasses.fields(Settings):  # a program's own, and forgotten after it
        monkeypatch.setattr(Settings, field.name, None)
    programs = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(programs) == len(PROGRAMS[page])
    with recorded(echo_url) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        run_here(programs[number].replace("http://127.0.0.1:8600", proxy.url), tmp_path)
        assert capsys.readouterr().out.strip()
        sent = len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))
    assert sent == PROGRAMS[page][number]
