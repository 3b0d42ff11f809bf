"""A chain summary while other users send requests to the same server (Parrot, Figure 12a)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.harness.metrics import mean_seconds, percentile
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper
from bench.workloads import _load
from bench.workloads.chain_summary import chunks, refine_chain

PAPER = paper("fig12a_background")
WORDS, OUTPUT = PAPER["background_prompt_words"], PAPER["output_tokens"]
PROMPT = round(WORDS * 1.3)  # tokens
# The most background requests. A client that cannot keep up with them would never end; with a real
# model the chain ends before this many have arrived.
MOST = 100


async def prepare(stage: Stage) -> Mapping[str, float]:
    """Measure how many background requests a second the baseline takes."""
    return {"saturation": await _load.saturation(stage, PROMPT, OUTPUT)}


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Backgrounds of several shares of the baseline's saturation."""
    shares = (0.8, 0.0, 0.3, 0.55)
    full = prepared["saturation"]
    return [
        Point(f"{share:.0%} load", {"rate": share * full}, share, (250,), quick=share == 0.8)
        for share in shares
    ]


async def run(stage: Stage, point: Point) -> None:
    """Summarise one document. The background begins two seconds before it and ends with it."""
    texts = chunks(stage, stage.seed)
    llm = stage.llm(stage.scale.tokens(OUTPUT))
    chain = stage.prepared(refine_chain(llm, len(texts)))

    rate = point.values["rate"]
    requests: set[asyncio.Task[None]] = set()

    async def background() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, at in zip(range(MOST), _load.poisson(stage.rng, rate), strict=False):
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            one = _load.chat(stage, "background", number, PROMPT, OUTPUT)
            requests.add(asyncio.create_task(one))

    load = asyncio.create_task(background()) if rate else None
    await asyncio.sleep(2.0 if rate else 0.0)
    async with stage.app("chain") as app:
        app.result = await chain.ainvoke({"chunks": texts})
    if load is not None:
        load.cancel()
    await asyncio.gather(*requests)


WORKLOAD = Workload(
    title="Chain summary with background load",
    points=points,
    run=run,
    prepare=prepare,
    metrics={
        "seconds": mean_seconds("chain"),
        "background p90": percentile(0.9, "background"),
    },
)
