"""Four applications, each with its system prompt; users arrive at random (Parrot, Figure 17)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from langchain_core.prompts import ChatPromptTemplate

from bench.harness.metrics import mean_seconds, ms_per_token, percentile
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper
from bench.workloads import _load

APPS = paper("fig17_gpts")["apps"]
PROMPT = ChatPromptTemplate.from_messages([("system", "{instructions}"), ("human", "{query}")])
PROMPTS, OUTPUTS = 0.5, 0.25  # shares of the paper's lengths, which were for four GPUs
RATES = (1.5, 0.5, 3.0, 6.0, 1.0, 0.25, 2.0)  # multiples of the baseline's saturation
REQUESTS = 60


async def prepare(stage: Stage) -> Mapping[str, float]:
    """Measure the requests a second that the baseline finishes when twelve arrive at once."""
    users = [_user(stage, number) for number in range(12)]
    began = time.perf_counter()
    await asyncio.gather(*users)
    return {"saturation": len(users) / (time.perf_counter() - began)}


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Poisson arrivals, from slow to far too fast for the baseline."""
    return [
        Point(f"{share:g} of saturation", {"rate": share * full}, round(share * full, 4),
              quick=share in (1.5, 0.5, 3.0, 6.0))
        for full in [prepared["saturation"]]
        for share in RATES
    ]  # fmt: skip


async def run(stage: Stage, point: Point) -> None:
    """Serve users who arrive at random, each of one of the four applications."""
    await _load.arriving(_times(stage, point), lambda number: _user(stage, number))


def _times(stage: Stage, point: Point) -> list[float]:
    arrivals = _load.poisson(stage.rng, point.values["rate"])
    return [next(arrivals) for _ in range(stage.scale.items(REQUESTS, least=4))]


async def _user(stage: Stage, number: int) -> None:
    which = number % len(APPS)
    lengths = APPS[which]
    # An application's prompt is the same in all repetitions, as it is part of its program.
    shared = stage.texts.document(f"gpts {which}", stage.scale.tokens(PROMPTS * lengths["prompt"]))
    query = stage.texts.document(f"query {stage.seed} {number}", lengths["query"] + 4)
    tokens = stage.scale.tokens(OUTPUTS * lengths["output"])
    texts = {"instructions": shared, "query": query}
    ask = stage.asker(PROMPT, tokens)
    async with stage.app("user") as app:
        app.result = await ask(texts)


WORKLOAD = Workload(
    title="Four GPTs applications",
    points=points,
    run=run,
    prepare=prepare,
    metrics={
        "ms per token": ms_per_token("user"),
        "mean latency": mean_seconds("user"),
        "p90": percentile(0.9, "user"),
    },
)
