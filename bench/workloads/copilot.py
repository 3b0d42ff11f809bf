"""Many users of a chat search share one long system prompt (Parrot, Figures 15 and 16)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from langchain_core.prompts import ChatPromptTemplate

from bench.harness.metrics import makespan, mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper

PAPER = paper("fig15_copilot")
PROMPT = ChatPromptTemplate.from_messages([("system", "{instructions}"), ("human", "{question}")])
OUTPUT = 96  # tokens; with the paper's 183 to 800, two cores would spend all time decoding


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """The paper's batches; the middle one comes first, as the headline."""
    users = [scale.items(n) for n in (40, 20, 80)]
    return [
        Point(f"{n} users", {"users": n}, n, (0, 250) if i == 0 else (0,), quick=i == 0)
        for i, n in enumerate(users)
    ]


async def run(stage: Stage, point: Point) -> None:
    """Every user asks one question, as long as a question of the paper's users."""
    ask = stage.asker(PROMPT, stage.scale.tokens(OUTPUT))
    shared = stage.texts.document(f"instructions {stage.seed}", scaled_prefix(stage))

    async def user(number: int, prompt_tokens: int) -> None:
        length = stage.scale.tokens(prompt_tokens - PAPER["shared_prefix_tokens"])
        question = stage.texts.document(f"question {stage.seed} {number}", max(length // 4, 8))
        async with stage.app("user") as app:
            app.result = await ask({"instructions": shared, "question": question})

    lengths = [prompt for prompt, _ in PAPER["prompt_and_output_tokens"]]
    await asyncio.gather(*(user(i, lengths[i]) for i in range(point.values["users"])))


def scaled_prefix(stage: Stage) -> int:
    """Tokens of the system prompt."""
    return stage.scale.tokens(PAPER["shared_prefix_tokens"])


WORKLOAD = Workload(
    title="Copilot: many users, one system prompt",
    points=points,
    run=run,
    metrics={
        "seconds": makespan(),
        "mean latency": mean_seconds("user"),
        "ms per token": ms_per_token("user"),
    },
)
