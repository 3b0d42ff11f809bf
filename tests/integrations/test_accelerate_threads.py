"""An accelerated graph of LangGraph is the plain graph, and its threads are sessions with edges."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.provenance import CHAT, line, plain
from tests.integrations.recording import Recording

pytest.importorskip("langgraph.graph")
from langgraph.types import Command

from tests.integrations import graphs

RIVERS = "The Nile is a long river in Africa."
MODES = ["values", "updates", "messages", "debug", "tasks", "checkpoints", "custom"]
RULES = [
    ("Join", "Both documents, joined into one."),
    ("lake one", "The first document is about weaving."),
    ("lake two", "The second document is about dyeing."),
    ("sure", "Yes, by most ways of measuring it."),
    ("", RIVERS),
]


def model(url: str, **options: Any) -> ChatWeftline:
    return ChatWeftline(base_url=url, temperature=0, **options)


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def said(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def sessions(recording: Recording) -> list[str]:
    return [body["weftline"]["session_id"] for body in recording.bodies(CHAT)]


def test_the_turns_of_a_thread_are_one_session(recording: Recording) -> None:
    """The second turn reads the first answer. Another thread has a session of its own."""
    graph = accelerate(graphs.chat(model(recording.url)))
    for name, text in (("a", "A river?"), ("b", "A river?"), ("a", "Are you sure?")):
        graph.invoke(said(text), thread(name))
    first, other, second = sessions(recording)
    assert first == second != other
    assert f"<={RIVERS}}}" in line(recording.bodies(CHAT)[-1])
    assert not any(body["weftline"].get("close") for body in recording.bodies(CHAT))


async def test_async_turns_are_one_session(recording: Recording) -> None:
    """As with `invoke`, and the stream of messages is in the session, too."""
    graph = accelerate(graphs.chat(model(recording.url)))
    await graph.ainvoke(said("A river?"), thread("a"))
    async for _ in graph.astream(said("Are you sure?"), thread("a"), stream_mode="messages"):
        pass
    first, second = sessions(recording)
    assert first == second
    assert f"<={RIVERS}}}" in line(recording.bodies(CHAT)[1])


def test_a_resumed_run_goes_on_in_its_session(recording: Recording) -> None:
    """After an interrupt, the joined summary has edges to both drafts of the run before."""
    graph = accelerate(graphs.reviewed(model(recording.url)))
    asked = graph.invoke({"topic": "lake"}, thread("a"))
    assert [one.value for one in asked["__interrupt__"]] == ["How?"]
    done = graph.invoke(Command(resume="Join"), thread("a"))
    assert done["final"] == RULES[0][1]
    assert len(set(sessions(recording))) == 1
    assert line(recording.bodies(CHAT)[-1]).count("<=") == 2


def test_without_a_thread_each_run_is_a_session(recording: Recording) -> None:
    """A graph without a checkpointer keeps one session a run."""
    chat = graphs.chat(model(recording.url))
    graph = accelerate(chat.copy({"checkpointer": None}))
    graph.invoke(said("A river?"))
    graph.invoke(said("A river?"))
    assert len(set(sessions(recording))) == 2


@pytest.mark.parametrize("mode", MODES)
def test_streams_are_the_plain_graphs(url: str, mode: Any) -> None:
    """Every stream mode has as many parts of the same kind, and messages have the same text."""
    streams = []
    for graph in (
        graphs.chat(model(url, provenance=False)),
        accelerate(graphs.chat(model(url))),
    ):
        streams.append(list(graph.stream(said("A river?"), thread("a"), stream_mode=mode)))
    expected, made = streams
    assert [type(part) for part in made] == [type(part) for part in expected]
    if mode == "messages":
        assert [part[0].content for part in made] == [part[0].content for part in expected]


def test_the_state_is_the_plain_graphs(url: str) -> None:
    """State, its history, and an update from outside."""
    states = []
    for graph in (
        graphs.chat(model(url, provenance=False)),
        accelerate(graphs.chat(model(url))),
    ):
        graph.invoke(said("A river?"), thread("a"))
        graph.update_state(thread("a"), said("Are you sure?"))
        found = [graph.get_state(thread("a")), *graph.get_state_history(thread("a"))]
        states.append([(plain(state.values), state.next) for state in found])
    assert states[0] == states[1]
    assert len(states[0]) > 3


def test_errors_are_the_plain_graphs() -> None:
    """The openai client's error comes out of the graph."""
    graph = accelerate(graphs.chat(model("http://127.0.0.1:1", max_retries=0)))
    with pytest.raises(Exception, match="Connection error"):
        graph.invoke(said("A river?"), thread("a"))


def test_the_graph_of_each_run_is_for_chains(url: str) -> None:
    """`on_graph` is refused in words."""
    with pytest.raises(ValueError, match="Accelerate the chain inside the node"):
        accelerate(cast(Any, graphs.chat(model(url))), on_graph=print)
