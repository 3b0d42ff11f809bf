"""Unrelated chats: the latency profile, where applications offer nothing to gain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.harness.metrics import makespan, mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload
from bench.workloads import _load

PROMPT, OUTPUT = 512, 100
TURNS = 2  # of every user, one after the other


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Numbers of users at once; the paper's axis is the tokens in flight."""
    return [Point(f"{n} at once", {"users": n}, n, quick=n in (1, 8)) for n in (8, 1, 2, 4, 16, 32)]


async def run(stage: Stage, point: Point) -> None:
    """Every user asks, waits for the answer, and asks something else."""

    async def user(number: int) -> None:
        for turn in range(TURNS):
            await _load.chat(stage, "chat", f"{number} {turn}", PROMPT, OUTPUT)

    await asyncio.gather(*map(user, range(point.values["users"])))


WORKLOAD = Workload(
    title="Independent chats",
    points=points,
    run=run,
    metrics={
        "mean latency": mean_seconds("chat"),
        "ms per token": ms_per_token("chat"),
        "seconds": makespan(),
    },
)
