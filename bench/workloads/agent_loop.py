"""One tool agent in LangGraph: a loop of model calls, each of which repeats the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.harness.metrics import mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload
from bench.workloads.many_agents import (
    OUTPUT,
    RESULT,
    SYSTEM,
    graph_agent,
    turns_of,
)


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Tools that answer at once; the client is near the server, then far from it."""
    return [Point("one agent", {}, delays_ms=(0, 250))]


async def run(stage: Stage, point: Point) -> None:
    """Run one agent from its first call to its last."""
    role, results = _texts(stage)
    llm = stage.llm(stage.scale.tokens(OUTPUT), accelerated=False)
    async with stage.app("agent") as app:
        app.result = await graph_agent(llm, role, results, [0.0] * len(results))


def _texts(stage: Stage) -> tuple[str, list[str]]:
    """The agent's role and the results of its tools."""
    texts, scale = stage.texts, stage.scale
    results = [
        texts.document(f"tool {stage.seed} {i}", scale.tokens(RESULT))
        for i in range(turns_of(scale) - 1)
    ]
    return texts.document(f"role {stage.seed}", scale.tokens(SYSTEM)), results


WORKLOAD = Workload(
    title="One tool agent",
    points=points,
    run=run,
    visits=True,
    metrics={"seconds": mean_seconds("agent"), "ms per token": ms_per_token("agent")},
)
