"""Every program of bench/recipes on both sides, with real embeddings and stores and
scripted answers.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.conftest import StartServer

if TYPE_CHECKING:
    from bench.recipes.library import Store

# The tests import the recipes, because that takes ten seconds of embeddings and stores: only the
# worker that runs this file spends them.
ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "bench" / "recipes"
MAX_LINES = 80

PARTS = """[{"sub_question": "What is a session?", "tool_name": "documentation"},
            {"sub_question": "What is a criterion?", "tool_name": "documentation"}]"""
RULES = [
    ("list of relevant sub-questions", PARTS),
    ("A list of documents is shown below", "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 3"),
    ("search queries", "engine failures\nlost calls"),
    ("from 0 to 9", "7"),
    ("", "A session, a variable, a criterion."),
]

# Calls, and the requests that carry them on weftline. LlamaIndex's chat engine, planners and
# rerankers call one by one, its synthesizers and extractors all at once. None: the number of calls
# depends on how many prompts the passages fill, which changes with the documentation.
EXPECTED: dict[str, tuple[int | None, int]] = {
    "naive_langchain": (7, 1),
    "naive_llamaindex": (None, 1),
    "advanced_langchain": (13, 3),
    "advanced_llamaindex": (None, 4),
    "chat_langchain": (6, 3),
    "chat_llamaindex": (5, 5),
    "sub_questions_langchain": (5, 2),
    "sub_questions_llamaindex": (6, 4),
    "batch_langchain": (53, 53),
    "batch_llamaindex": (53, 4),
}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    from bench.recipes.library import lance

    with lance() as found:
        yield found


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    return start_script(RULES)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for all searches that run beside them. On a busy machine one takes over 10 ms."""
    monkeypatch.setattr("langchain_weftline.run.runner.GATHER_S", 10.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe(name: str, store: Store, url: str) -> None:
    """Both sides give the same answers with the same calls. weftline often needs fewer requests."""
    from bench.recipes.gain import compare, report
    from bench.recipes.library import passages

    found = compare(import_module(f"bench.recipes.{name}").run, store, url=url)
    plain, ours = found["plain"], found["weftline"]
    assert ours.answer.text == plain.answer.text != ""
    assert ours.answer.sources == plain.answer.sources != []
    assert set(ours.answer.sources) <= {passage.source for passage in passages()}
    known, requests = EXPECTED[name]
    calls = plain.counts["calls"] if known is None else known
    assert calls >= max(requests, 3)
    assert (plain.counts["calls"], plain.counts["requests"]) == (calls, calls)
    assert (ours.counts["calls"], ours.counts["requests"]) == (calls, requests)
    shown = [call for graph in ours.graphs for call in graph["calls"]]
    assert len(shown) == calls
    printed = report([found, found, found])
    for part in ("sources: ", "plain:", "weftline:", "of 3 rounds", ours.answer.sources[0]):
        assert part in printed
    wanted = ["latency"] * calls
    if name.startswith("batch"):
        wanted = ["latency"] * 3 + ["throughput"] * 50
    assert sorted(call["objective"] for call in shown) == wanted


def test_postgres_finds_the_same(store: Store) -> None:
    """PostgreSQL with pgvector ranks the passages as LanceDB does."""
    from bench.recipes.postgres import postgres

    with postgres() as other:
        for query in ("What is a semantic variable?", "How are engines started again?"):
            assert other.search(query, 5) == store.search(query, 5)


def test_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs with a reader's arguments: on its own servers behind a delay, with the other store.

    It runs in this process, because the imports and the passages' embeddings are here already.
    """
    options = ["--store", "postgres", "--rtt-ms", "100", "--repeat", "1", "--", "--engine", "null"]
    monkeypatch.setattr("sys.argv", ["naive_llamaindex", *options])
    monkeypatch.delitem(sys.modules, "bench.recipes.naive_llamaindex", raising=False)
    runpy.run_module("bench.recipes.naive_llamaindex", run_name="__main__")
    printed = capsys.readouterr().out
    assert "sources: concepts.md" in printed
    counted = re.search(r"^requests +(\d+) +1$", printed, re.MULTILINE)
    assert counted is not None and int(counted[1]) >= 3


@pytest.mark.parametrize(
    ("plain", "ours", "says"),
    [
        ([4.0, 4.2, 4.1, 9.0, 4.0], [2.0, 2.1, 2.0, 2.2, 1.9], "2.05 times faster"),
        ([1.0, 1.1, 1.0], [2.0, 2.2, 2.1], "2.10 times slower"),
        ([1.0, 2.0, 3.0], [1.5, 1.0, 2.5], "no difference beyond the noise"),
        ([2.0], [1.0], "too few rounds to tell"),
        ([2.0, 2.0], [1.0, 1.0], "too few rounds to tell"),
    ],
)
def test_a_ratio_is_told_where_the_quartiles_part(
    plain: list[float], ours: list[float], says: str
) -> None:
    """One or two rounds do not decide. The ratio is of medians, and quartiles must not overlap."""
    from bench.recipes.gain import quartiles, verdict

    assert quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 3.0, 4.0)
    assert verdict(plain, ours) == says


def test_every_recipe_is_listed() -> None:
    """The page lists all programs, and no other file runs."""
    page = (RECIPES / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\((\w+_(?:langchain|llamaindex))\.py\)", page))
    assert listed == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_is_short(name: str) -> None:
    """The part that a person reads fits on a page."""
    assert len((RECIPES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= MAX_LINES
