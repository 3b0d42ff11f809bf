"""LangGraph's Send: a planner lists topics, a node writes about each, and an editor joins them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, TypedDict

from compare import Tier, main
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from langchain_weftline import ChatWeftline

TOPICS = ("the loom", "the shuttle", "the weft")
LIST = ChatPromptTemplate.from_template("List words about {subject}, with commas.")
WRITE = ChatPromptTemplate.from_template("Write one sentence about {topic}.")
POLISH = ChatPromptTemplate.from_template("Make this livelier: {draft}")
EDIT = ChatPromptTemplate.from_template("{texts}\n\nWrite a title for this text.")


class State(TypedDict):
    words: list[str]
    texts: Annotated[list[str], operator.add]
    title: str


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    short = llm.bind(max_tokens=16)
    plan = tier(LIST | short | CommaSeparatedListOutputParser())
    draft = {"draft": WRITE | short | StrOutputParser()}
    write = tier(draft | POLISH | short | StrOutputParser())
    edit = tier(EDIT | short | StrOutputParser())
    graph = StateGraph(State)
    graph.add_node("plan", lambda state: {"words": plan.invoke({"subject": "weaving"})})
    graph.add_node("write", lambda sent: {"texts": [write.invoke(sent)]})
    graph.add_node("edit", lambda state: {"title": edit.invoke({"texts": _sorted(state)})})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges(
        "plan", lambda state: [Send("write", {"topic": topic}) for topic in TOPICS], ["write"]
    )
    graph.add_edge("write", "edit")
    graph.add_edge("edit", END)
    app = graph.compile()
    return lambda: app.invoke({"words": [], "texts": [], "title": ""})["title"]


def _sorted(state: State) -> str:
    return "\n".join(sorted(state["texts"]))


if __name__ == "__main__":
    main(build)
