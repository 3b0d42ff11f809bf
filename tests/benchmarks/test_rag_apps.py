"""The applications of `bench rag_graph` run, and so do the programs of `bench rag_programs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from bench.micro import _rag_apps as apps
from bench.micro import _rag_ours, rag_programs
from bench.micro._rag_apps import App
from bench.micro._rag_programs import Program
from bench.micro.rag_graph import Texts, in_turns
from tests.integrations.conftest import served

TABLES = f"""
[[embedder]]
name = "minilm"
model = "null"
[[store]]
name = "docs"
store = "memory"
[[function]]
name = "web"
call = "_rag_web:search"
path = {json.dumps(str(Path(_rag_ours.__file__).parent))}
"""
ANSWERS = {App.ADVANCED: "a better one", App.SEARCH: "an answer", App.SUB_QUESTIONS: "the whole"}


def listed(count: int) -> str:
    """A list of questions, as the model would write it under the constraint."""
    return json.dumps([letter * apps.QUERY_CHARS for letter in "ABCD"[:count]])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real model's place is taken by a script, and MiniLM's by an embedder without weights."""
    folder: Path = tmp_path_factory.mktemp("rag")
    config, script = folder / "weftline.toml", folder / "script.json"
    config.write_text(TABLES)
    rules = {
        apps.PLAN[:40]: listed(apps.PARTS),
        "Generate 3 search queries": "A question?\nAnother one?\nA third one?",
        "Does this answer need a search?": apps.NEEDS,
        "Sub question: ": "the whole",
        "Query: AAA": "one",
        "Query: BBB": "two",
        "Query: CCC": "three",
        "Query: DDD": "four",
        "existing answer": "a better one",
        "Question 0": "an answer",
        "You are an AI language model assistant": "A question?\nAnother one?",
        rag_programs.QUESTION: "the Tiber",
    }
    script.write_text(json.dumps([{"when": k, "reply": v} for k, v in rules.items()]))
    options = ("--config", str(config), "--null-mode", "script", "--null-script", str(script))
    with served(*options) as url:
        yield url


@pytest.mark.parametrize("app", App)
async def test_an_application_has_its_answer(url: str, app: App) -> None:
    """Whatever its calls and steps are."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        assert await _rag_ours.run(http, Texts().task(app, 0)) == ANSWERS[app]


async def test_two_servers_take_turns(url: str) -> None:
    """Each of the two gets every task but the first, which warms it up."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        found = await in_turns({"with": http, "without": http}, App.ADVANCED, Texts(), 2)
    assert {name: len(seconds) for name, seconds in found.items()} == {"with": 2, "without": 2}


@pytest.mark.parametrize("make", rag_programs.PROGRAMS.values(), ids=rag_programs.PROGRAMS)
def test_a_program_gives_one_answer_plainly_and_ahead(
    url: str, make: Callable[[str, bool], Program]
) -> None:
    plain, ahead = rag_programs.rounds(make(url, False), make(url, True), 2)
    assert len(plain) == len(ahead) == 2
    line = rag_programs.row("A", 0.02, 0.25, [1.0, 1.0], [0.5, 0.25])
    assert line.startswith("| A | 20 ms | 250 ms | 1.00 s (1.00 to 1.00) |")
    assert line.endswith("| 3.00 (2.50 to 3.50) |")
