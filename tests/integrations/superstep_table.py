"""Graphs of LangGraph whose functions call models side by side: sends, tasks, batches and tools."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from tests.integrations.graph_table import State, ask, called, graph

RULES = [
    ("Found the Tiber by looking", "Both have seen the Tiber."),
    ("Said by both", "Two experts agree on the Tiber."),
    ("Ask both", called("expert", topic="water") + called("expert", topic="towns")),
    ("Look twice", called("look", topic="water") + called("look", topic="towns")),
    ("Expert on water", "Said by both: the water is clean there."),
    ("Expert on towns", "Said by both: the towns are full there."),
    ("Sum up green", "Green is a calm colour, they say."),
]
COLOURS = ["red", "blue", "green"]


def mapped(one: Any, merge: Any, **options: Any) -> StateGraph[Any, Any, Any, Any]:
    """A node `one` for each step of the state by `Send`, and a node `merge`."""

    def send(state: State) -> list[Send]:
        return [Send("one", {"topic": step}) for step in state["steps"]]

    made = StateGraph(State)
    made.add_node("one", one, **options)
    made.add_node("merge", merge)
    made.add_conditional_edges(START, send, ["one"])
    made.add_edge("one", "merge")
    return made


def summing(llm: Any) -> Any:
    def one(state: State) -> State:
        return {"done": [ask(llm, "Sum up {topic}").invoke(state)]}

    return one


def merging(llm: Any) -> Any:
    def merge(state: State) -> State:
        return {"answer": ask(llm, "Merge {a}").invoke({"a": "; ".join(sorted(state["done"]))})}

    return merge


@graph({"steps": COLOURS}, 4, 4, 3)
def three_maps_and_a_reduce(llm: Any) -> Any:
    """The usual program with `Send`."""
    return mapped(summing(llm), merging(llm)).compile()


@graph({"steps": COLOURS}, 4, 4, 3, is_async=True)
def three_async_maps_and_a_reduce(llm: Any) -> Any:
    """The same with coroutines."""

    async def one(state: State) -> State:
        return {"done": [await ask(llm, "Sum up {topic}").ainvoke(state)]}

    async def merge(state: State) -> State:
        text = "; ".join(sorted(state["done"]))
        return {"answer": await ask(llm, "Merge {a}").ainvoke({"a": text})}

    return mapped(one, merge).compile()


@graph({"steps": COLOURS}, 5, 5, 3)
def maps_with_a_retry(llm: Any) -> Any:
    """One map fails once after its call. LangGraph repeats it, and so only that call."""
    failed: list[str] = []

    def one(state: State) -> State:
        text = ask(llm, "Sum up {topic}").invoke(state)
        if state["topic"] == "red" and not failed:
            failed.append(text)
            raise ConnectionError("the node has failed")
        return {"done": [text]}

    policy = RetryPolicy(initial_interval=0.01, jitter=False)
    return mapped(one, merging(llm), retry_policy=policy).compile()


@graph({"steps": COLOURS}, 5, 5, 3, then=(Command(resume="yes"),))
def maps_after_an_interrupt(llm: Any) -> Any:
    """One map asks a person after its call. When they go on, it makes its call again."""

    def one(state: State) -> State:
        text = ask(llm, "Sum up {topic}").invoke(state)
        if state["topic"] == "red":
            return {"done": [f"{text}{interrupt('Is it right?')}"]}
        return {"done": [text]}

    return mapped(one, merging(llm)).compile(checkpointer=InMemorySaver())


@graph({"topic": "a colour"}, 3, 3, 2)
def functions_side_by_side(llm: Any) -> Any:
    """Two nodes that follow the start, and a node that waits for both."""
    made = StateGraph(State)

    def add(name: str, field: str) -> None:
        made.add_node(
            name, lambda state: {field: ask(llm, f"Sum up {name} {{topic}}").invoke(state)}
        )
        made.add_edge(START, name)

    add("red", "draft")
    add("blue", "flaw")
    merge = ask(llm, "Merge {draft} and {flaw}")
    made.add_node("merge", lambda state: {"answer": merge.invoke(state)})
    made.add_edge(["red", "blue"], "merge")
    return made.compile()


@graph({"topic": "colours"}, 4, 4, 4)
def sends_of_a_command(llm: Any) -> Any:
    """A node that plans sends its tasks itself."""

    def plan(state: State) -> Command[Any]:
        text = ask(llm, "Outline {topic}").invoke(state)
        return Command(
            update={"draft": text},
            goto=[Send("one", {"topic": f"{one}: {text}"}) for one in ("red", "blue")],
        )

    made = StateGraph(State)
    made.add_node("plan", plan, destinations=("one",))
    made.add_node("one", summing(llm))
    made.add_node("merge", merging(llm))
    made.add_edge(START, "plan")
    made.add_edge("one", "merge")
    return made.compile()


@graph({"steps": COLOURS}, 5, 5, 4)
def maps_in_an_inner_graph(llm: Any) -> Any:
    """The graph with the maps is a node."""
    made = StateGraph(State)
    made.add_node("inner", mapped(summing(llm), merging(llm)).compile())
    made.add_node("polish", lambda state: {"draft": ask(llm, "Polish {answer}").invoke(state)})
    made.add_edge(START, "inner")
    made.add_edge("inner", "polish")
    return made.compile()


@graph({"steps": COLOURS}, 4, 4, 3)
def a_batch_in_a_node(llm: Any) -> Any:
    """A node that calls a chain for a list of inputs."""

    def write(state: State) -> State:
        found = ask(llm, "Sum up {x}").batch([{"x": one} for one in state["steps"]])
        return {"answer": ask(llm, "Merge {a}").invoke({"a": "; ".join(found)})}

    made = StateGraph(State)
    made.add_node("write", write)
    made.add_edge(START, "write")
    return made.compile()


@graph({"steps": COLOURS}, 4, 4, 3)
def tasks_of_the_functional_api(llm: Any) -> Any:
    """Tasks that run on threads, and a call on what they have made."""

    @task
    def one(topic: str) -> str:
        return str(ask(llm, "Sum up {x}").invoke({"x": topic}))

    @entrypoint()
    def write(given: State) -> str:
        futures = [one(step) for step in given["steps"]]
        text = "; ".join(future.result() for future in futures)
        return str(ask(llm, "Merge {a}").invoke({"a": text}))

    return write


def look(topic: str) -> str:
    """Look."""
    return f"Found the Tiber by looking at {topic}"


@graph({"messages": [HumanMessage("Look twice")]}, 2, 2, 1)
def parallel_tools(llm: Any) -> Any:
    """An agent whose answer calls two tools."""
    return create_agent(llm, [look])


@graph({"messages": [HumanMessage("Ask both")]}, 4, 4, 3)
def parallel_tools_that_ask_models(llm: Any) -> Any:
    """An agent whose answer calls two tools that are chains themselves."""

    def expert(topic: str) -> str:
        """Ask an expert."""
        return str(ask(llm, "Expert on {topic}").invoke({"topic": topic}))

    return create_agent(llm, [expert])
