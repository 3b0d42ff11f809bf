"""Interactive chats beside map-reduce summaries (Parrot, Figure 19)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.harness.metrics import mean_seconds, ms_per_token, percentile
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper
from bench.workloads import _load
from bench.workloads.map_reduce import documents, map_reduce_chain

PAPER = paper("fig19_mixed")
CHAT_PROMPT, CHAT_OUTPUT = 400, 200  # about ShareGPT's means
CHAT_LOAD = 0.4  # share of the chats that the baseline can take alone
GROUP, GAP_S = 3, 5.0  # three summaries arrive together every five seconds


async def prepare(stage: Stage) -> Mapping[str, float]:
    """Measure how many chats a second the baseline takes alone."""
    return {"saturation": await _load.saturation(stage, CHAT_PROMPT, CHAT_OUTPUT)}


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """The paper's one mix."""
    return [Point("mix", {"rate": CHAT_LOAD * prepared["saturation"]})]


async def run(stage: Stage, point: Point) -> None:
    """Chats arrive at random, summaries in groups."""
    llm = stage.llm(stage.scale.tokens(PAPER["output_tokens"]))
    chain = stage.prepared(map_reduce_chain(llm))

    async def summary(number: int) -> None:
        texts = documents(stage, f"{stage.seed} {number}")
        async with stage.app("map-reduce") as app:
            app.result = await chain.ainvoke(texts)

    arrivals = _load.poisson(stage.rng, point.values["rate"])
    times = [next(arrivals) for _ in range(stage.scale.items(PAPER["chat_requests"]))]
    starts = [GAP_S * (i // GROUP) for i in range(stage.scale.items(PAPER["map_reduce_apps"]))]

    async def chat(number: int) -> None:
        await _load.chat(stage, "chat", number, CHAT_PROMPT, CHAT_OUTPUT)

    await asyncio.gather(_load.arriving(times, chat), _load.arriving(starts, summary))


WORKLOAD = Workload(
    title="Chats beside map-reduce summaries",
    points=points,
    run=run,
    prepare=prepare,
    metrics={
        "chat ms per token": ms_per_token("chat"),
        "map-reduce seconds": mean_seconds("map-reduce"),
        "chat p90": percentile(0.9, "chat"),
    },
)
