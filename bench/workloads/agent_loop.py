"""One tool agent in LangGraph: a loop of model calls, each of which repeats the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.messages import HumanMessage, SystemMessage

from bench.harness.metrics import mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload
from bench.workloads.many_agents import OUTPUT, RESULT, SYSTEM, agent, turns_of


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Tools that answer at once; the client is near the server, then far from it."""
    return [Point("one agent", {}, delays_ms=(0, 250))]


async def run(stage: Stage, point: Point) -> None:
    """Run one agent from its first call to its last."""
    texts, scale = stage.texts, stage.scale
    turns = turns_of(scale)
    results = [
        texts.document(f"tool {stage.seed} {i}", scale.tokens(RESULT)) for i in range(turns - 1)
    ]
    role = texts.document(f"role {stage.seed}", scale.tokens(SYSTEM))
    graph = agent(stage.llm(scale.tokens(OUTPUT), compiled=False), results, [0.0] * len(results))
    messages = [SystemMessage(role), HumanMessage("Do your work.")]
    async with stage.app("agent") as app:
        end = await graph.ainvoke({"messages": messages, "turns": 0}, {"recursion_limit": 100})
        app.result = str(end["messages"][-1].content)


WORKLOAD = Workload(
    title="One tool agent",
    figure="not in the paper",
    paper="none: what most LangGraph users run first",
    difference=(
        "it is not in the paper: the client drives the loop, so the server has nothing to plan."
    ),
    points=points,
    run=run,
    metrics={"seconds": mean_seconds("agent"), "ms per token": ms_per_token("agent")},
    target={"0": 1.0},
)
