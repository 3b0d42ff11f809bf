"""A pytest plugin that accelerates every graph of LangGraph that a test compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from langgraph.func import entrypoint
from langgraph.graph import StateGraph

from langchain_weftline import accelerate

_graphs = count()


def _accelerated(compile: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any, **options: Any) -> Any:
        next(_graphs)
        return accelerate(compile(*args, **options))

    return compiled


# create_agent and create_react_agent compile with the first one, too.
StateGraph.compile = _accelerated(StateGraph.compile)  # type: ignore[method-assign]
entrypoint.__call__ = _accelerated(entrypoint.__call__)  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def count_graphs(record_testsuite_property: Callable[[str, object], None]) -> Iterator[None]:
    """Write into the report how many graphs there were."""
    yield
    record_testsuite_property("graphs", next(_graphs))
