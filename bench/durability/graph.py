"""The graph that `langgraph dev` serves for the comparison: three steps of half a second."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    """The text so far."""

    text: str


def _step(name: str):  # type: ignore[no-untyped-def]
    async def run(state: State) -> State:
        await asyncio.sleep(0.5)
        return {"text": f"{state['text']} {name}"}

    return run


_builder = StateGraph(State)
for _name in "abc":
    _builder.add_node(_name, _step(_name))
_builder.add_edge(START, "a")
_builder.add_edge("a", "b")
_builder.add_edge("b", "c")
_builder.add_edge("c", END)
graph = _builder.compile()
