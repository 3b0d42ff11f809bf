"""The agents of cookbook/tools: the same answer with early tools, which overlap the model."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "cookbook" / "tools"


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delenv("WEFTLINE_BASE_URL", raising=False)
    return import_module("rehearsal")


@pytest.fixture
def url(rehearsal: Any) -> Iterator[str]:
    with rehearsal.server() as url:
        yield url


@pytest.mark.parametrize("name", ["langchain_agent", "llamaindex_agent"])
def test_an_agent_with_early_tools(name: str, rehearsal: Any, url: str) -> None:
    """It answers as the plain one, and each search runs once. The searches overlap the model."""
    found = rehearsal.compare(import_module(name).run, url)
    (plain, after), (early, during) = found.values()
    assert plain == early == rehearsal.ANSWER
    for times in (after, during):
        tools = sorted(span for kind, span, *_ in times.spans if kind == "tool")
        assert tools == [f"weather in {town}" for town in rehearsal.SECONDS]
        assert len([kind for kind, *_ in times.spans if kind == "model"]) == 2
    assert after.overlap_s < during.overlap_s
    picture = rehearsal.drawn(found)
    assert all(title in picture for title in found) and "weather in Chamonix" in picture
    assert picture.count("><title>the model writes: step") == 4
