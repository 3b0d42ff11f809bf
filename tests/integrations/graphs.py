"""Graphs of LangGraph for tests: a chat with memory, two drafts at once, and a question between."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt


class Drafts(TypedDict, total=False):
    topic: str
    drafts: Annotated[list[str], operator.add]
    final: str


def chat(llm: BaseChatModel) -> Any:
    """A chat that remembers its thread."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("answer", answer)
    made.add_edge(START, "answer")
    return made.compile(checkpointer=InMemorySaver())


def reviewed(llm: BaseChatModel) -> Any:
    """Two drafts by `Send`; a person then says how they are joined."""

    def send(state: Drafts) -> list[Send]:
        return [Send("draft", {"topic": f"{state['topic']} {part}"}) for part in ("one", "two")]

    def draft(state: Drafts) -> Drafts:
        return {"drafts": [str(llm.invoke(f"Summarize {state['topic']}").content)]}

    def join(state: Drafts) -> Drafts:
        how = interrupt("How?")
        return {"final": str(llm.invoke(f"{how}: {' | '.join(state['drafts'])}").content)}

    made = StateGraph(Drafts)
    made.add_node("draft", draft)
    made.add_node("join", join)
    made.add_conditional_edges(START, send, ["draft"])
    made.add_edge("draft", "join")
    return made.compile(checkpointer=InMemorySaver())
