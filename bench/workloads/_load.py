"""Background load: chats that are unrelated to each other, and their arrival times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from langchain_core.prompts import ChatPromptTemplate

from bench.harness.stage import Stage

CHAT = ChatPromptTemplate.from_template("{text}\n\nWhat does this text say about weaving?")
CLOSED = 16  # requests at once; they saturate a server, whose batches are no larger here


async def chat(stage: Stage, kind: str, seed: object, prompt: int, output: int) -> None:
    """Send one request of `prompt` tokens with an answer of `output` tokens, in the paper's
    sizes."""
    ask = stage.asker(CHAT, stage.scale.tokens(output))
    text = stage.texts.document(f"{kind} {stage.seed} {seed}", stage.scale.tokens(prompt))
    async with stage.app(kind) as app:
        app.result = await ask({"text": text})


async def saturation(stage: Stage, prompt: int, output: int) -> float:
    """The requests a second that a system finishes while it always has CLOSED of them."""
    requests = CLOSED if stage.scale.quick else CLOSED * 3 // 2
    room = asyncio.Semaphore(CLOSED)

    async def one(number: int) -> None:
        async with room:
            await chat(stage, "saturation", number, prompt, output)

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(requests)))
    return requests / (time.perf_counter() - began)


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Arrival times in seconds, at `rate` a second on average."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


async def arriving(times: list[float], start: Callable[[int], Awaitable[None]]) -> None:
    """Call `start(i)` at times[i], and wait until all have ended."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def later(number: int, at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        await start(number)

    await asyncio.gather(*(later(number, at) for number, at in enumerate(times)))
