"""Runs that only our own handlers watch: no audience, and in the session of the run around them."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph

from langchain_weftline import ChatWeftline, accelerate, compile_chain
from langchain_weftline.trace.audience import hears_models, hears_retrievers
from langchain_weftline.trace.provenance import LISTENER
from langchain_weftline.trace.threads import Threads
from tests.integrations.graph_table import State
from tests.integrations.program_table import ask, joke_and_critique, several_queries
from tests.integrations.recording import Recording


def model(recording: Recording) -> ChatWeftline:
    return ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)


def test_our_handlers_are_no_audience() -> None:
    """A handler of the user is one."""
    ours: list[BaseCallbackHandler] = [LISTENER, Threads()]
    assert not hears_models(ours)
    assert not hears_retrievers(ours)
    assert hears_models([*ours, BaseCallbackHandler()])
    assert hears_retrievers([*ours, BaseCallbackHandler()])


def test_a_compiled_chain_in_an_accelerated_graph(recording: Recording) -> None:
    """Only its result comes back, as nobody listens to its calls."""
    chain = compile_chain(joke_and_critique(model(recording)))
    made = StateGraph(State)
    made.add_node("tell", lambda state: {"answer": chain.invoke({"x": state["topic"]})})
    made.add_edge(START, "tell")
    accelerate(made.compile()).invoke({"topic": "soup"})
    (body,) = recording.bodies("/v1/submit")
    assert len(body["calls"]) == 2
    assert len(body["watch"]) == 1


def sessions(recording: Recording) -> list[Any]:
    return [body["weftline"]["session_id"] for body in recording.bodies("/v1/chat/completions")]


def test_a_retriever_that_asks_a_model(recording: Recording) -> None:
    """Its call is in the session of the chain around the retriever."""
    several_queries(model(recording)).invoke("What crosses?")
    assert len(sessions(recording)) == 2
    assert len(set(sessions(recording))) == 1


def test_a_tool_that_asks_a_model(recording: Recording) -> None:
    """Its call is in the session of the chain around the tool."""
    llm = model(recording)

    @tool
    def expert(topic: str) -> str:
        """Ask an expert."""
        return str(ask(llm, "Tell of {topic}").invoke({"topic": topic}))

    chain = ask(llm, "Name {x}") | RunnableLambda(lambda text: {"topic": text}) | expert
    chain.invoke({"x": "soup"})
    assert len(sessions(recording)) == 2
    assert len(set(sessions(recording))) == 1
