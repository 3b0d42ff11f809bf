"""Many chain summaries that start at the same time (Parrot, Figures 12b and 13)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.harness.metrics import makespan, mean_seconds
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper
from bench.workloads.chain_summary import chunks, refine_chain

PAPER = paper("fig12b_concurrent_chains")
OUTPUT = 50


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """The paper's 10 to 25 applications, the most first."""
    counts = sorted({scale.items(n) for n in PAPER["apps"]}, reverse=True)
    return [
        Point(f"{n} apps", {"apps": n}, n, (250,), quick=number == 0)
        for number, n in enumerate(counts)
    ]


async def run(stage: Stage, point: Point) -> None:
    """Every application summarises a document of its own."""
    llm = stage.llm(stage.scale.tokens(OUTPUT))

    async def one(number: int) -> None:
        texts = chunks(stage, f"{stage.seed} {number}")
        chain = stage.prepared(refine_chain(llm, len(texts)))
        async with stage.app("chain") as app:
            app.result = await chain.ainvoke({"chunks": texts})

    await asyncio.gather(*map(one, range(point.values["apps"])))


WORKLOAD = Workload(
    title="Many chain summaries at once",
    points=points,
    run=run,
    metrics={"mean seconds": mean_seconds("chain"), "seconds": makespan()},
)
