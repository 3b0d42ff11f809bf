"""Many users of a chat search share one long system prompt (Parrot, Figures 15 and 16)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from bench.harness.metrics import makespan, mean_seconds, ms_per_token
from bench.harness.plain import chat
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


Ask = Callable[[dict[str, str]], Awaitable[str]]


async def run(stage: Stage, point: Point) -> None:
    """Every user asks one question, as long as a question of the paper's users."""
    chain = stage.compiled(PROMPT | stage.llm(stage.scale.tokens(OUTPUT)) | StrOutputParser())
    await _users(stage, point, chain.ainvoke)


async def by_hand(stage: Stage, point: Point) -> None:
    """All users at once."""
    async with stage.plain(stage.scale.tokens(OUTPUT)) as client:
        await _users(stage, point, lambda texts: client.ask(chat(PROMPT, **texts)))


async def _users(stage: Stage, point: Point, ask: Ask) -> None:
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
    figure="Figures 15 and 16",
    paper="1.8 to 2.4 times without sharing, 1.1 to 1.7 over a paged shared prefix, 1 A100, 7B",
    difference=(
        "without sharing, the paper's engines prefilled the prompt for every user. vLLM today "
        "prefills it once. The remaining gain is to read the shared keys and values once for all "
        "users."
    ),
    points=points,
    run=run,
    by_hand=by_hand,
    metrics={
        "seconds": makespan(),
        "mean latency": mean_seconds("user"),
        "ms per token": ms_per_token("user"),
    },
)
