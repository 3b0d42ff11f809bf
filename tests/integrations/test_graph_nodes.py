"""Nodes that are chains: their calls begin when LangGraph starts the node, and end with it."""

from __future__ import annotations

import asyncio
from threading import Barrier
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.ahead.nodes import Nodes
from langchain_weftline.model.transport import httpx
from tests.integrations.graph_table import RULES as RULES
from tests.integrations.graph_table import State, ask, chapters
from tests.integrations.recording import Recording

WAIT_S = 30.0  # for an event that comes at once
SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
THREAD: Any = {"configurable": {"thread_id": "a"}}


def graph_of(*nodes: Any) -> Any:
    """Nodes in a row, with a checkpointer that stops before the last of several."""
    made = StateGraph(State)
    names = [f"node{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        made.add_node(name, node)
    for start, end in zip([START, *names], names, strict=False):
        made.add_edge(start, end)
    return made.compile(checkpointer=InMemorySaver(), interrupt_before=names[1:])


def posted(recording: Recording) -> list[str]:
    return [path for verb, path, _ in recording.requests if verb == "POST"]


def model(recording: Recording, **options: Any) -> ChatWeftline:
    return ChatWeftline(base_url=recording.url, temperature=0, max_retries=0, **options)


def test_the_calls_of_a_node_join_the_threads_session(recording: Recording) -> None:
    """After an interrupt and an update of the state, the next node's calls read what it has now."""
    llm = model(recording)
    polish = RunnablePassthrough.assign(answer=ask(llm, "Polish {flaw}"))
    last = polish.assign(draft=ask(llm, "Merge {answer}")).pick(["answer", "draft"])
    graph = accelerate(graph_of(chapters(llm), last))
    graph.invoke({"topic": "looms"}, THREAD)
    assert graph.get_state(THREAD).next == ("node1",)
    graph.update_state(THREAD, {"flaw": "Fill: seven chapters."})
    done = graph.invoke(None, THREAD)
    assert posted(recording) == [SUBMIT, SUBMIT]
    first, second = recording.bodies(SUBMIT)
    assert first["session_id"] == second["session_id"]
    assert "seven chapters" in str(second["calls"][0])
    assert done["draft"] == "Warm and cold colours differ."


def test_one_call_is_not_sent_ahead(recording: Recording) -> None:
    """LangGraph makes the only call of a node at once, as an ordinary request."""
    graph = accelerate(graph_of(RunnableParallel(answer=ask(model(recording), "Polish {topic}"))))
    graph.invoke({"topic": "looms"}, THREAD)
    assert posted(recording) == [CHAT]


def test_without_provenance_a_node_has_a_session_of_its_own(recording: Recording) -> None:
    """The server is told of no run then, and the calls of a node still begin together."""
    graph = accelerate(graph_of(chapters(model(recording, provenance=False))))
    assert graph.invoke({"topic": "looms"}, THREAD)["flaw"] == "Three chapters, filled with text."
    (body,) = recording.bodies(SUBMIT)
    assert body.get("session_id") is None
    assert body["close"] is True


def test_the_second_node_reads_the_answers_of_the_first(recording: Recording) -> None:
    """Calls that begin ahead name the earlier answers that their inputs are."""
    llm = model(recording)
    again = RunnablePassthrough.assign(answer=ask(llm, "Polish {flaw}"))
    graph = accelerate(graph_of(chapters(llm), again.assign(draft=ask(llm, "Merge {answer}"))))
    graph.invoke({"topic": "looms"}, THREAD)
    graph.invoke(None, THREAD)
    first, second = recording.bodies(SUBMIT)
    made = first["calls"][1]["placeholders"][-1]["semantic_var_id"]
    assert second["calls"][0]["placeholders"][0]["from_var"] == made


def test_a_failing_node_leaves_nothing(recording: Recording) -> None:
    """The user's exception comes out, unused calls end, and the handler holds no run."""
    llm = model(recording)

    def refuse(value: object) -> None:
        raise LookupError("nothing there")

    calls = {"answer": ask(llm, "Polish {topic}"), "flaw": ask(llm, "Merge {topic}")}
    broken = RunnableParallel(calls) | RunnableLambda(refuse)
    graph = accelerate(graph_of(broken))
    (nodes,) = [one for one in vars(graph)["_handlers"] if isinstance(one, Nodes)]
    with pytest.raises(LookupError, match="nothing there"):
        graph.invoke({"topic": "looms"}, THREAD)
    assert posted(recording) == [SUBMIT]
    assert nodes._begun == {}


def test_nodes_that_start_together_call_together(url: str) -> None:
    """Two nodes without an edge between them have their requests under way at the same time."""
    both = Barrier(2)
    http = httpx.Client(event_hooks={"request": [lambda _: both.wait(WAIT_S)]})
    llm = ChatWeftline(base_url=url, temperature=0, max_retries=0, http_client=http)
    made = StateGraph(State)
    for name, field in (("one", "draft"), ("two", "flaw")):
        made.add_node(name, RunnableParallel({field: ask(llm, "Sum up red {topic}")}))
        made.add_edge(START, name)
    done = accelerate(made.compile()).invoke({"topic": "looms"})
    assert done["draft"] == done["flaw"] == "Red is a warm colour, they say."
    http.close()


def test_functions_that_call_chains(recording: Recording) -> None:
    """They start together, in one session with their edges, also after an interrupt and an update.

    The chain of a function is not seen before the function calls it: its calls are not sent ahead.
    """
    both = Barrier(2)
    http = httpx.Client(event_hooks={"request": [lambda _: both.wait(WAIT_S)]})
    together, llm = model(recording, http_client=http), model(recording)
    made = StateGraph(State)

    def add(name: str, field: str) -> None:
        chain = ask(together, f"Sum up {name} {{topic}}")
        made.add_node(name, lambda state: {field: chain.invoke(state)})
        made.add_edge(START, name)
        made.add_edge(name, "merge")

    add("red", "draft")
    add("blue", "flaw")
    merge = ask(llm, "Merge {draft} and {flaw} on {topic}")
    made.add_node("merge", lambda state: {"answer": merge.invoke(state)})
    graph = accelerate(made.compile(checkpointer=InMemorySaver(), interrupt_before=["merge"]))
    graph.invoke({"topic": "looms"}, THREAD)
    graph.update_state(THREAD, {"topic": "yarn"}, as_node="red")
    assert graph.get_state(THREAD).next == ("merge",)
    assert graph.invoke(None, THREAD)["answer"] == "Warm and cold colours differ."
    assert posted(recording) == [CHAT] * 3
    told = [body["weftline"] for body in recording.bodies(CHAT)]
    assert len({one["session_id"] for one in told}) == 1
    [pieces] = told[2]["messages"]
    assert [(piece["name"], "from_var" in piece) for piece in pieces if "name" in piece] == [
        ("draft", True),
        ("flaw", True),
        ("topic", False),
    ]
    http.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_functions_that_call_the_model_several_times(recording: Recording, is_async: bool) -> None:
    """All calls of all functions are in the thread's session, with the edges between them.

    The second turn of the thread goes on in the session, and reads an answer of the first one.
    """
    llm = model(recording)

    def write(state: State) -> State:
        red = llm.invoke(f"Sum up red {state['topic']}").text
        blue = llm.invoke(f"Sum up blue {state['topic']}").text
        return {"draft": red, "flaw": llm.invoke(f"Merge {red} and {blue}").text}

    async def awrite(state: State) -> State:
        asked = [llm.ainvoke(f"Sum up {one} {state['topic']}") for one in ("red", "blue")]
        red, blue = [said.text for said in await asyncio.gather(*asked)]
        return {"draft": red, "flaw": (await llm.ainvoke(f"Merge {red} and {blue}")).text}

    def polish(state: State) -> State:
        return {"answer": llm.invoke(f"Polish {state['draft']}").text}

    made = StateGraph(State)
    made.add_node("write", RunnableLambda(write, afunc=awrite))
    made.add_node("polish", polish)
    made.add_edge(START, "write")
    made.add_edge("write", "polish")
    graph = accelerate(made.compile(checkpointer=InMemorySaver()))

    def turn(given: State) -> Any:
        return (
            asyncio.run(graph.ainvoke(given, THREAD)) if is_async else graph.invoke(given, THREAD)
        )

    first = turn({"topic": "looms"})
    turn({"topic": first["draft"]})
    told = [body["weftline"] for body in recording.bodies(CHAT)]
    assert len({one["session_id"] for one in told}) == 1
    edges = [sum("from_var" in piece for piece in one["messages"][0]) for one in told]
    assert posted(recording) == [CHAT] * 8
    assert edges == [0, 0, 2, 1, 1, 1, 2, 1]


def test_other_models_are_left_alone(recording: Recording) -> None:
    """A node with a model of another class, or a function, begins nothing."""
    other = FakeListChatModel(responses=["one", "two"])
    graph = accelerate(graph_of(chapters(other), lambda state: {"answer": state["flaw"]}))
    graph.invoke({"topic": "looms"}, THREAD)
    assert graph.invoke(None, THREAD)["answer"] == "two"
    assert posted(recording) == []
