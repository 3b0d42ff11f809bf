"""Agents whose tools take 50 ms, 0.7 s or 8 s, on a KV pool of a third of what their contexts need.

Every answer is given: the model is held to one tool with one possible argument, so that all systems
generate the same tokens. The last call of an agent is `answer`, as agents with structured answers
end. The tools of an agent stay the same, so that each prompt begins with the one before it. All
engines get the chat template tool_mix.jinja: with a template that knows no tools, vLLM leaves them
out of the prompt, and weftline describes them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from bench.harness.metrics import apps_per_minute, mean_seconds, ms_per_token, percentile
from bench.harness.stage import Stage
from bench.harness.workload import TINY, Point, Scale, Workload
from bench.workloads.many_agents import (
    AGENTS,
    OUTPUT,
    RESULT,
    State,
    kv_tokens,
    looped,
    role_tokens,
    turns_of,
)

# Seconds of each tool, and how often it is called for each ten calls.
TOOLS = {"clock": (0.05, 5), "search": (0.7, 4), "crawl": (8.0, 1)}
ANSWER = "answer"
CALL = 32  # the tokens that a call has around its text, and some more
TOOL = 62  # the tokens of a tool in the prompt, without the text that is its argument
STOPS = {"ignore_eos": False}  # a call ends where its JSON does; the stage's models never stop
TEMPLATE = Path(__file__).with_suffix(".jinja")


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent: its system prompt, its tools for the model, what it calls, and the results."""

    role: str
    tools: Sequence[Mapping[str, Any]]
    calls: Sequence[str]  # the last one is ANSWER
    results: Sequence[str]


def described(name: str, text: str) -> dict[str, Any]:
    """A tool with one argument, for which `text` is the only value."""
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "enum": [text]}},
        "required": ["text"],
        "additionalProperties": False,
    }
    about = {
        "name": name,
        "description": f"The tool {name}.",
        "parameters": schema,
        "strict": True,  # without it vLLM writes any arguments
    }
    return {"type": "function", "function": about}


def chosen(name: str) -> dict[str, Any]:
    """The `tool_choice` that holds the model to a tool."""
    return {"type": "function", "function": {"name": name}}


def drawn(stage: Stage, number: int) -> Agent:
    """The agent with this number; each has its own texts, and calls its own tools."""
    scale, seed = stage.scale, f"{stage.seed} {number}"
    rng = random.Random(seed)
    turns = turns_of(scale)
    document, weights = stage.texts.document, [often for _, often in TOOLS.values()]
    calls = rng.choices(tuple(TOOLS), weights, k=turns - 1)
    text = document(f"call {seed}", scale.tokens(OUTPUT))
    return Agent(
        role=document(f"role {seed}", max(1, role_tokens(scale) - _tool_tokens(scale))),
        tools=[described(name, text) for name in (*TOOLS, ANSWER)],
        calls=[*calls, ANSWER],
        results=[document(f"{seed} {at}", scale.tokens(RESULT)) for at in range(turns - 1)],
    )


def _tool_tokens(scale: Scale) -> int:
    """The tokens of the tools in an agent's prompt."""
    return (len(TOOLS) + 1) * (TOOL + scale.tokens(OUTPUT))


def seconds_of(name: str, scale: Scale) -> float:
    """How long a tool takes. A tenth of it at the smallest scale, where nothing is measured."""
    seconds, _ = TOOLS[name]
    return seconds / 10 if scale.name == TINY.name else seconds


async def graph_agent(llm: BaseChatModel, agent: Agent, scale: Scale) -> str:
    """Run one agent of LangGraph, until the model calls ANSWER, and return its last answer."""

    async def think(state: State) -> dict[str, Any]:
        choice = chosen(agent.calls[state["turns"]])
        model = llm.bind(tools=agent.tools, tool_choice=choice, extra_body=STOPS)
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def act(state: State) -> dict[str, Any]:
        turn = state["turns"]
        said = state["messages"][-1]
        await asyncio.sleep(seconds_of(agent.calls[turn], scale))
        called = said.tool_calls if isinstance(said, AIMessage) else []
        result: AnyMessage = HumanMessage(agent.results[turn])
        if called:  # the null engine writes words, and no calls
            result = ToolMessage(agent.results[turn], tool_call_id=called[0]["id"])
        return {"messages": [result], "turns": turn + 1}

    last = await looped(think, act, len(agent.calls) - 1, agent.role)
    calls = last.tool_calls if isinstance(last, AIMessage) else []
    return str(calls[0]["args"] if calls else last.content)


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """All agents at once, then half of them."""
    most = scale.items(AGENTS)
    return [
        Point(f"{n} agents", {"agents": n}, n, quick=n == most)
        for n in dict.fromkeys((most, max(2, most // 2)))
    ]


async def run(stage: Stage, point: Point) -> None:
    """Start all agents at once, each a LangGraph."""
    llm = stage.llm(stage.scale.tokens(OUTPUT) + CALL, accelerated=False)

    async def one(number: int) -> None:
        agent = drawn(stage, number)
        async with stage.app("agent") as app:
            app.result = await graph_agent(llm, agent, stage.scale)

    await asyncio.gather(*map(one, range(point.values["agents"])))


WORKLOAD = Workload(
    title="Agents with fast and slow tools",
    points=points,
    run=run,
    visits=True,
    metrics={
        "seconds": mean_seconds("agent"),
        "99th percentile": percentile(0.99, "agent"),
        "apps per minute": apps_per_minute(),
        "ms per token": ms_per_token("agent"),
    },
    systems=(
        "langchain-vllm",
        "langchain-vllm-4",
        "langchain-vllm-8",
        "langchain-vllm-12",
        "without-memory",
        "without-tool_pauses",
        "weftline",
        "weftline-vllm",
        "weftline-vllm-plugin",
    ),
    # All on our own engine, so that a clean clone can run it.
    quick_systems=("without-memory", "without-tool_pauses", "weftline"),
    kv_tokens=kv_tokens,
    template=TEMPLATE.read_text(encoding="utf-8"),
)
