"""Typical graphs of LangGraph's users, as functions of a model, with the requests they make.

A scripted server answers. `plain` has the requests of the plain graph, and `ours` those of the
accelerated one. `edges` has the edges of its session that the server shows.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

TEXT = StrOutputParser()


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


RULES = [
    ("Found the Tiber", "The Tiber flows through Rome."),
    ("Moved to the writer", "The writer has written about the Tiber."),
    ("You move work", called("move", to="writer")),
    ("Which way", "number"),
    ("Count", "Seven hills were counted there."),
    ("Sum up red", "Red is a warm colour, they say."),
    ("Sum up blue", "Blue is a cold colour, they say."),
    ("Merge", "Warm and cold colours differ."),
    ("Third and last", "ACCEPT the essay as it is now."),
    ("Criticise", "It lacks an ending of any sort."),
    ("Improve", "Third and last draft of the essay."),
    ("Write an essay", "First draft of an essay on rivers."),
    ("Rewrite the question", "Which rivers flow through Rome?"),
    ("Grade", "yes"),
    ("From these documents", "It is the Tiber, says a document."),
    ("Plan", "find the spring, find the mouth"),
    ("find the spring", "The spring is on Monte Fumaiolo."),
    ("find the mouth", "The mouth is near Ostia, by the sea."),
    ("Answer with", "From Fumaiolo to Ostia it flows."),
    ("Outline", "An outline with three chapters."),
    ("Fill", "Three chapters, filled with text."),
    ("Polish", "Three polished chapters of text."),
    ("", called("search", query="rivers of Rome")),
]


@dataclass(frozen=True)
class GraphProgram:
    """A graph, its input, its requests plain and ours, and the edges between its calls.

    `then` has the inputs of later turns of the same thread. `refused` counts the requests that the
    server refuses. The graph has only functions or only coroutines if it `is_sync` or `is_async`.
    """

    make: Callable[[Any], Any]
    given: Any
    plain: int
    ours: int
    edges: int
    then: tuple[Any, ...] = ()
    refused: int = 0
    is_sync: bool = False
    is_async: bool = False

    @property
    def name(self) -> str:
        return self.make.__name__


GRAPHS: list[GraphProgram] = []
Make = Callable[[Any], Any]


def graph(given: Any, plain: int, ours: int, edges: int, **more: Any) -> Callable[[Make], Make]:
    """Put a graph into the table."""

    def add(make: Make) -> Make:
        GRAPHS.append(GraphProgram(make, given, plain, ours, edges, **more))
        return make

    return add


def ask(llm: Any, template: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(template) | llm | TEXT


def search(query: str) -> str:
    """Search."""
    return "Found the Tiber"


class State(TypedDict, total=False):
    """What the graphs of this table remember."""

    topic: str
    draft: str
    flaw: str
    rounds: int
    documents: list[Document]
    steps: list[str]
    done: Annotated[list[str], operator.add]
    answer: str


USER = {"messages": [HumanMessage("Which river?")]}


@graph(USER, 2, 2, 1)
def agent_with_tools(llm: Any) -> Any:
    """LangChain's ReAct agent."""
    return create_agent(llm, [search])


@graph(USER, 2, 2, 1)
def react_by_hand(llm: Any) -> Any:
    """The same loop, built from LangGraph's parts."""
    bound = llm.bind_tools([search])

    def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [bound.invoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("think", think)
    made.add_node("tools", ToolNode([search]))
    made.add_edge(START, "think")
    made.add_conditional_edges("think", tools_condition)
    made.add_edge("tools", "think")
    return made.compile()


@graph({"topic": "hills"}, 2, 2, 0)
def router(llm: Any) -> Any:
    """The model says which node runs. No prompt holds its word."""

    def choose(state: State) -> Literal["count", "tell"]:
        kind = ask(llm, "Which way for {topic}?").invoke({"topic": state["topic"]})
        return "count" if "number" in kind else "tell"

    made = StateGraph(State)
    made.add_node("count", {"answer": ask(llm, "Count {topic}")} | RunnablePassthrough())
    made.add_node("tell", {"answer": ask(llm, "Tell of {topic}")} | RunnablePassthrough())
    made.add_conditional_edges(START, choose)
    return made.compile()


@graph({"topic": "rivers", "rounds": 0}, 4, 4, 4)
def reflection(llm: Any) -> Any:
    """A draft, a critic and an improved draft, until the critic accepts it."""

    def write(state: State) -> State:
        return {"draft": ask(llm, "Write an essay on {topic}").invoke(state)}

    def criticise(state: State) -> State:
        return {"flaw": ask(llm, "Criticise this: {draft}").invoke(state)}

    def improve(state: State) -> State:
        made = ask(llm, "Improve {draft} because {flaw}").invoke(state)
        return {"draft": made, "rounds": state["rounds"] + 1}

    made = StateGraph(State)
    for node in (write, criticise, improve):
        made.add_node(node)
    made.add_edge(START, "write")
    made.add_edge("write", "criticise")
    made.add_conditional_edges(
        "criticise", lambda state: END if state["flaw"].startswith("ACCEPT") else "improve"
    )
    made.add_edge("improve", "criticise")
    return made.compile()


@graph({"topic": "Rome"}, 3, 3, 0)
def corrective_rag(llm: Any) -> Any:
    """Rewrite, retrieve, grade, answer. The answers go through the retriever."""

    def rewrite(state: State) -> State:
        return {"draft": ask(llm, "Rewrite the question: {topic}").invoke(state)}

    def retrieve(state: State) -> State:
        return {"documents": [Document("The Tiber is long."), Document("Rome is old.")]}

    def grade(state: State) -> Literal["answer", "rewrite"]:
        first = state["documents"][0].page_content
        good = ask(llm, "Grade {document}").invoke({"document": first})
        return "answer" if good == "yes" else "rewrite"

    def answer(state: State) -> State:
        text = "\n".join(one.page_content for one in state["documents"])
        return {"answer": ask(llm, "From these documents:\n{text}").invoke({"text": text})}

    made = StateGraph(State)
    for node in (rewrite, retrieve, answer):
        made.add_node(node)
    made.add_edge(START, "rewrite")
    made.add_edge("rewrite", "retrieve")
    made.add_conditional_edges("retrieve", grade)
    return made.compile()


@graph(USER, 3, 3, 3)
def supervisor(llm: Any) -> Any:
    """A supervisor with a tool that moves the work to another agent."""

    def move(to: str) -> str:
        """Move the work."""
        return f"Moved to the {to}"

    boss = create_agent(llm, [move], system_prompt="You move work.", name="boss")
    writer = create_agent(llm, [], system_prompt="Count the hills.", name="writer")

    def moved(state: MessagesState) -> Command[Any]:
        return Command(goto="writer")

    made = StateGraph(MessagesState)
    made.add_node("boss", boss)
    made.add_node("moved", moved)
    made.add_node("writer", writer)
    made.add_edge(START, "boss")
    made.add_edge("boss", "moved")
    return made.compile()


@graph({"topic": "the Tiber"}, 4, 4, 4)
def plan_and_execute(llm: Any) -> Any:
    """A plan in steps, a call for each step, and an answer from all of them."""
    planner = ChatPromptTemplate.from_template("Plan {topic}") | llm
    read = planner | CommaSeparatedListOutputParser()

    def plan(state: State) -> State:
        return {"steps": read.invoke(state)}

    def execute(state: State) -> State:
        step, *rest = state["steps"]
        return {"steps": rest, "done": [ask(llm, "{step}").invoke({"step": step})]}

    def answer(state: State) -> State:
        return {"answer": ask(llm, "Answer with {all}").invoke({"all": " ".join(state["done"])})}

    made = StateGraph(State)
    for node in (plan, execute, answer):
        made.add_node(node)
    made.add_edge(START, "plan")
    made.add_edge("plan", "execute")
    made.add_conditional_edges("execute", lambda s: "execute" if s["steps"] else "answer")
    return made.compile()


def chapters(llm: Any) -> Runnable[Any, Any]:
    outline = RunnablePassthrough.assign(draft=ask(llm, "Outline {topic}"))
    return outline.assign(flaw=ask(llm, "Fill {draft}")).pick(["draft", "flaw"])


@graph({"topic": "looms"}, 3, 2, 2)
def nodes_that_are_chains(llm: Any) -> Any:
    """A node of two calls in a row, and one of one call."""
    made = StateGraph(State)
    made.add_node("write", chapters(llm))
    made.add_node("polish", RunnableParallel(answer=ask(llm, "Polish {flaw}")))
    made.add_edge(START, "write")
    made.add_edge("write", "polish")
    return made.compile()


@graph({"topic": "looms"}, 3, 2, 2)
def a_graph_in_a_graph(llm: Any) -> Any:
    """The first node is a graph, whose node is a chain."""
    inner = StateGraph(State)
    inner.add_node("chapters", chapters(llm))
    inner.add_edge(START, "chapters")
    made = StateGraph(State)
    made.add_node("write", inner.compile())
    made.add_node("polish", RunnableParallel(answer=ask(llm, "Polish {flaw}")))
    made.add_edge(START, "write")
    made.add_edge("write", "polish")
    return made.compile()


@graph({"topic": "looms"}, 4, 2, 2)
def chains_side_by_side(llm: Any) -> Any:
    """Two nodes that start together, each of two calls."""
    made = StateGraph(State)
    made.add_node("chapters", chapters(llm))
    colours = RunnablePassthrough.assign(a=ask(llm, "Sum up red {topic}"))
    merged = colours.assign(answer=ask(llm, "Merge {a}"))
    made.add_node("colours", merged.pick(["answer"]))
    made.add_edge(START, "chapters")
    made.add_edge(START, "colours")
    return made.compile()
