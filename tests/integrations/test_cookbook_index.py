"""The index of the cookbook: it names each recipe once, and each file that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

COOKBOOK = Path(__file__).parents[2] / "cookbook"
# What recipes share or start, and the demo, which README shows.
NO_RECIPES = {"demo.py", "graphs/runners.py", "langchain/compare.py", "langchain/minilm.py"}
NO_RECIPES |= {"agents/stock_server.py", "tools/rehearsal.py", "notebooks.py"}
MAX_LINES = 120


def test_every_recipe_is_in_the_index() -> None:
    """A line of its tables for each, and no line for a file that has gone."""
    page = (COOKBOOK / "README.md").read_text()
    listed = re.findall(r"^\| \[(\S+?)\]\((\S+?)\) \|", page, re.MULTILINE)
    assert all(shown == target for shown, target in listed)
    there = {one.relative_to(COOKBOOK).as_posix() for one in COOKBOOK.rglob("*.py")}
    recipes = [shown for shown, _ in listed if shown.endswith(".py")]
    assert sorted(recipes) == sorted(there - NO_RECIPES)
    assert all((COOKBOOK / shown).exists() for shown, _ in listed)


def test_a_recipe_that_is_looked_for_first_is_short() -> None:
    """A newcomer reads it at once."""
    first = (COOKBOOK / "README.md").read_text().partition("## Whole folders")[0]
    for name in re.findall(r"^\| \[(\S+?\.py)\]", first, re.MULTILINE):
        assert len((COOKBOOK / name).read_text().splitlines()) <= MAX_LINES, name
