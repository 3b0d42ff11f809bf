"""An accelerated graph of LangGraph is a copy that lacks nothing and shows nothing of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.recording import Recording

pytest.importorskip("langgraph.graph")
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from tests.integrations.graph_table import RULES as RULES
from tests.integrations.graph_table import State, chapters

SUBMIT = "/v1/submit"
THREAD: Any = {"configurable": {"thread_id": "a"}}


class Counter(BaseModel):
    """A state with a number."""

    count: int


class Heard(BaseCallbackHandler):
    """Counts the model calls that it hears of."""

    def __init__(self) -> None:
        self.calls = 0

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.calls += 1


def counting() -> Any:
    made = StateGraph(Counter)
    made.add_node("one", lambda state: {"count": state.count + 1})
    made.add_edge(START, "one")
    return made.compile(checkpointer=InMemorySaver())


def chaptered(recording: Recording, **options: Any) -> Any:
    """A graph with one node, which is a chain of several calls."""
    made = StateGraph(State)
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)
    made.add_node("chapters", chapters(llm))
    made.add_edge(START, "chapters")
    return made.compile(**options)


@pytest.mark.parametrize("configured", [False, True], ids=["as it is", "with a configuration"])
def test_a_typed_state_stays_one(configured: bool) -> None:
    """Version 2 gives the state's own class, also where the accelerated graph is copied."""
    plain = counting()
    graph = accelerate(plain)
    if configured:
        graph = graph.with_config(tags=["copied"])
    assert type(graph).__name__ == type(plain).__name__ and isinstance(graph, type(plain))
    for version in ("v1", "v2"):
        expected = plain.invoke({"count": 1}, THREAD, version=version)
        assert graph.invoke({"count": 1}, THREAD, version=version) == expected
    parts = list(graph.stream({"count": 1}, THREAD, stream_mode="values", version="v2"))
    assert parts == list(plain.stream({"count": 1}, THREAD, stream_mode="values", version="v2"))


def test_no_state_shows_a_handler(recording: Recording) -> None:
    """Neither the configuration of a state nor that of the graph has callbacks of ours."""
    graph = accelerate(chaptered(recording, checkpointer=InMemorySaver()))
    graph.invoke({"topic": "looms"}, THREAD)
    state = graph.get_state(THREAD)
    assert not state.config.get("callbacks")
    assert not (graph.config or {}).get("callbacks")
    assert [body.get("calls") is not None for body in recording.bodies(SUBMIT)] == [True]


WAYS = ("the call", "the graph", "the accelerated graph", "all")


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_callbacks_of_the_user_leave_a_graph_accelerated(
    where: str, is_async: bool, recording: Recording
) -> None:
    """Callbacks hear what they hear of the plain graph, and the node's calls are one submit."""

    def run(accelerated: bool) -> tuple[list[int], int]:
        recording.requests.clear()
        call, own, late = Heard(), Heard(), Heard()
        graph = chaptered(recording)
        if where in ("the graph", "all"):
            graph = graph.with_config(callbacks=[own])
        if accelerated:
            graph = accelerate(graph)
        if where in ("the accelerated graph", "all"):
            graph = graph.with_config(callbacks=[late])
        config: Any = {"callbacks": [call]} if where in ("the call", "all") else None
        if is_async:
            asyncio.run(graph.ainvoke({"topic": "looms"}, config))
        else:
            graph.invoke({"topic": "looms"}, config)
        submits = len(recording.bodies(SUBMIT))
        return [call.calls, own.calls, late.calls], submits

    plain, none = run(False)
    ahead, one = run(True)
    assert (none, one) == (0, 1)
    assert ahead == plain and max(plain) > 1


def test_an_accelerated_graph_in_a_node_of_another(recording: Recording) -> None:
    """The run's callbacks hear of the calls in the inner graph, as of the plain one's."""

    def run(inner: Any) -> tuple[Any, int]:
        outer = StateGraph(State)
        outer.add_node("inner", lambda state: inner.invoke(state))
        outer.add_edge(START, "inner")
        heard = Heard()
        made = outer.compile().invoke({"topic": "looms"}, {"callbacks": [heard]})
        return made, heard.calls

    plain = run(chaptered(recording))
    assert run(accelerate(chaptered(recording))) == plain
    assert plain[1] > 1
