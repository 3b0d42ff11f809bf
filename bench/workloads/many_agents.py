"""Tool agents in LangGraph with pauses; their contexts need three times the KV pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from bench.harness.metrics import apps_per_minute, mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload

AGENTS = 80  # at the usual scale of 0.4: 32
TURNS, QUICK_TURNS = 8, 3  # with 3, the fewest, each context is still reused twice
SYSTEM, RESULT, OUTPUT = 800, 120, 80
POOL = 1 / 3  # of the tokens of all contexts at their longest
TASK = "Do your work."


class State(TypedDict):
    """The conversation of one agent, and how many tools it has called."""

    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


class LoopNode(Protocol):
    """A node of the loop."""

    async def __call__(self, state: State) -> dict[str, Any]: ...


async def looped(think: LoopNode, act: LoopNode, tools: int, role: str) -> AnyMessage:
    """Run a loop of model and tools of LangGraph, until `tools` tools have run and the model has
    answered. Returns its last answer."""
    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda s: "act" if s["turns"] < tools else END)
    graph.add_edge("act", "think")
    begin: State = {"messages": [SystemMessage(role), HumanMessage(TASK)], "turns": 0}
    end = await graph.compile().ainvoke(begin, {"recursion_limit": 100})
    last: AnyMessage = end["messages"][-1]
    return last


def turns_of(scale: Scale) -> int:
    """The model calls of each agent."""
    return QUICK_TURNS if scale.quick else TURNS


def turn_tokens(scale: Scale) -> int:
    """The tokens that all turns of an agent add to its context."""
    return turns_of(scale) * scale.tokens(RESULT + OUTPUT)


def kv_tokens(scale: Scale) -> int:
    """The tokens of the pool on both sides: a third of what all agents need in their last turn.

    Where one pool is for all workloads, the agents get longer roles instead.
    """
    if scale.one_pool:
        return scale.kv_tokens
    return round(POOL * scale.items(AGENTS) * (scale.tokens(SYSTEM) + turn_tokens(scale)))


def role_tokens(scale: Scale) -> int:
    """The tokens of an agent's system prompt that make all contexts three times the pool."""
    return round(kv_tokens(scale) / POOL / scale.items(AGENTS)) - turn_tokens(scale)


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """All agents, a quarter, a half of them; with tools that take half a second, then eight."""
    most = scale.items(AGENTS)
    counts = dict.fromkeys((most, max(2, most // 4), max(2, most // 2)))
    return [
        Point(
            f"{n} agents, {pause:g} s",
            {"agents": n, "pause": pause},
            n,
            quick=pause < 1 and n == most,
        )
        for pause in (0.5, 8.0)
        for n in counts
    ]


async def graph_agent(
    llm: BaseChatModel, role: str, results: Sequence[str], pauses: Sequence[float]
) -> str:
    """Run one agent and return its last answer. Each tool waits its pause and returns one of
    `results`."""

    async def think(state: State) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    async def act(state: State) -> dict[str, Any]:
        turn = state["turns"]
        await asyncio.sleep(pauses[turn])
        return {"messages": [HumanMessage(f"The tool says: {results[turn]}")], "turns": turn + 1}

    return str((await looped(think, act, len(results), role)).content)


async def run(stage: Stage, point: Point) -> None:
    """Start all agents at once, each a LangGraph with its own context and pauses."""
    llm = stage.llm(stage.scale.tokens(OUTPUT), accelerated=False)
    turns = turns_of(stage.scale)

    async def one(number: int) -> None:
        rng = random.Random(f"{stage.seed} {number}")
        texts = [
            stage.texts.document(f"{stage.seed} {number} {i}", stage.scale.tokens(RESULT))
            for i in range(turns - 1)
        ]
        pauses = [rng.expovariate(1 / point.values["pause"]) for _ in texts]
        role = stage.texts.document(f"role {stage.seed} {number}", role_tokens(stage.scale))
        async with stage.app("agent") as app:
            app.result = await graph_agent(llm, role, texts, pauses)

    await asyncio.gather(*map(one, range(point.values["agents"])))


WORKLOAD = Workload(
    title="Many tool agents, a small KV pool",
    points=points,
    run=run,
    visits=True,
    metrics={
        "apps per minute": apps_per_minute(),
        "mean seconds": mean_seconds("agent"),
        "ms per token": ms_per_token("agent"),
    },
    systems=(
        "langchain-vllm",
        "langchain-vllm-4",
        "langchain-vllm-8",
        "langchain-vllm-12",
        "weftline",
        "weftline-vllm",
        "weftline-vllm-plugin",
        "openai-weftline-vllm",
    ),
    quick_systems=("langchain-vllm", "langchain-vllm-4", "weftline"),  # five contexts fit
    kv_tokens=kv_tokens,
)
