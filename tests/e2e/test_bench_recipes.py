"""Recipes of bench/recipes on the real model: in float32 both sides give the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bench.recipes.library import Store


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    # Importing it takes ten seconds, which only the worker that runs this file spends.
    from bench.recipes.library import lance

    with lance() as found:
        yield found


# tests/integrations runs all recipes on scripted answers. These three run on the real model, one of
# them with a planner whose output is constrained.
@pytest.mark.parametrize(
    "name", ["naive_langchain", "naive_llamaindex", "sub_questions_llamaindex"]
)
def test_a_recipe(name: str, store: Store, model_url: str) -> None:
    """It gives the plain LLM's answer token for token, from the same sources and calls."""
    from bench.recipes.gain import compare

    found = compare(import_module(f"bench.recipes.{name}").run, store, url=model_url)
    plain, ours = found["plain"], found["weftline"]
    assert ours.answer == plain.answer
    assert len(ours.answer.text) > 10 and ours.answer.sources
    assert ours.counts["calls"] == plain.counts["calls"] == plain.counts["requests"]
    assert ours.counts["requests"] < plain.counts["requests"]
