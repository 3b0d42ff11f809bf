"""The page docs/rag.md: its programs run, and its settings are settings of the server."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from tests.integrations.conftest import RETRIEVES
from weftline_engine.services.retrieval.config import Store
from weftline_server.commands.retrieval_tables import (
    EmbedderSpec,
    RerankerSpec,
    StoreSpec,
    from_tables,
)

OPTIONS = RETRIEVES

PAGE = (Path(__file__).parents[2] / "docs" / "rag.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["langchain", "llamaindex", "sdk"])
def test_a_program_finds_the_text(
    program: str,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model echoes its prompt, which holds the text that fits the question, and no other."""
    monkeypatch.setenv("WEFTLINE_BASE_URL", url)
    path = tmp_path / "program.py"
    path.write_text(program)
    runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert "The shuttle carries the weft." in printed and "tension" not in printed


def test_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each table makes an engine's factory. Those of GGUF files want a llama-server, and are tested
    beside one, in tests/llamacpp."""
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    specs = from_tables(tomllib.loads(text))
    assert [type(spec) for spec in specs] == [
        *[EmbedderSpec] * 3,
        *[RerankerSpec] * 3,
        *[StoreSpec] * 2,
    ]
    assert {spec.store for spec in specs if isinstance(spec, StoreSpec)} == set(Store) - {"memory"}
    monkeypatch.setenv("DOCS_DSN", "postgresql://")
    files = [one for one in specs if isinstance(one, EmbedderSpec) and ".gguf" in str(one.model)]
    assert [one.name for one in files] == ["nomic", "bge"]
    for spec in specs:
        assert spec in files or callable(spec.factory())
