"""Parrot's Figures 17 and 19 on four simulated GPUs, under the policy that servers run.

    .venv/bin/python -m tests.simulator.four_gpus

prints both tables. A GPU is an A6000 with a model of 7B weights in bfloat16, by arithmetic: a step
reads 14 GB of weights in 20 ms, a prompt token takes 14 GFLOP of 70 TFLOPS, and a token of KV cache
is 0.5 MB of 768 GB/s. The cache has 60,000 tokens. Latency is the mean time of an answer for each
of its tokens, from the arrival of its user on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from tests.simulator.programs import Step, map_reduce, perform, text
from tests.simulator.world import World, asking, world
from weftline.contract.protocol import Criterion
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

GPU = SimulatedConfig(
    cost=StepCost(step_s=0.020, fill_s=0.0002, sequence_s=0.0002, token_s=0.65e-6),
    kv_tokens=60_000,
    step_tokens=1024,
    beside_tokens=1024,
)
GPUS = 4
# Tokens of prompt, query and answer of the four applications (Parrot, section 8.3).
GPTS = ((7437, 7, 704), (1116, 8, 89), (1694, 4, 631), (2031, 4, 416))
USERS = 120
RATES = (1.0, 2.0, 4.0, 8.0)
# Figure 19: chats of ShareGPT's means, and summaries of documents in 16 chunks.
CHATS, CHATS_EACH_S = 40, 1.0
CHAT = [Step(own=400, output=200)]
SUMMARIES, TOGETHER, GAP_S = 9, 3, 5.0
SUMMARY = map_reduce(16, 1024, 50)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Way:
    """How calls find an engine: the server's policy, engines in turn, or a cache for each user.
    With `bulk` summaries are for throughput.
    """

    policy: str = "app"
    in_turn: bool = False
    shares: bool = True
    bulk: bool = False


WAYS = {
    "weftline": Way(),
    "requests": Way("request"),
    "engines in turn": Way("request", in_turn=True),
    "nothing shared": Way("request", shares=False),
}


MIXES = {
    "weftline": Way(),
    "weftline, summaries for throughput": Way(bulk=True),
    "requests": Way("request"),
}


def gpts(way: Way, rate: float, users: int = USERS) -> float:
    """Figure 17: the milliseconds a token of users who come at random, `rate` a second."""

    async def main(loop: VirtualLoop) -> float:
        async with _gpus(loop, way) as made:
            rng = random.Random(17)
            prompts = [text(rng, prompt) for prompt, _, _ in GPTS]

            async def user(number: int) -> float:
                began, which = made.now, number % len(GPTS)
                _, query, answer = GPTS[which]
                said = prompts[which] + text(random.Random(number), query)
                call = asking(said, "v", answer, ignore_eos=True)
                session = made.driver.open("t" if way.shares else f"t{number}")
                await made.ask(session, replace(call, model=_model(way, number)))
                made.driver.close(session)
                return 1e3 * (made.now - began) / answer

            return fmean(await _arriving(_poisson(rng, rate, users), user))

    return run(main)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Figure 19: a chat's milliseconds a token, those of the slowest tenth, the seconds of a
    summary, and how many summaries leave a GPU without any of their chunks to the chats."""

    chat_ms: float
    slow_ms: float
    summary_s: float
    leave_one: int


def mixed(way: Way) -> Mixed:
    """Chats come at random, and three summaries together every five seconds."""

    async def main(loop: VirtualLoop) -> Mixed:
        async with _gpus(loop, way) as made:
            wish = Criterion.THROUGHPUT if way.bulk else None
            chats, summaries = await asyncio.gather(
                _arriving(
                    _poisson(random.Random(19), CHATS_EACH_S, CHATS),
                    lambda number: perform(made, CHAT, f"chat {number}"),
                ),
                _arriving(
                    [GAP_S * (number // TOGETHER) for number in range(SUMMARIES)],
                    lambda number: perform(made, SUMMARY, f"summary {number}", wish),
                ),
            )
        each = sorted(1e3 * one.seconds / CHAT[0].output for one in chats)
        slow = each[len(each) * 9 // 10]
        leave_one = sum(len(set(one.engines[:-1])) < GPUS for one in summaries)
        return Mixed(fmean(each), slow, fmean(one.seconds for one in summaries), leave_one)

    return run(main)


def _gpus(loop: VirtualLoop, way: Way) -> AbstractAsyncContextManager[World]:
    configs = [replace(GPU, model=_model(way, number)) for number in range(GPUS)]
    return world(loop, *configs, policy=way.policy)


def _model(way: Way, number: int) -> str:
    """The name of an engine's model; each has its own where calls go to them in turn."""
    return f"m{number % GPUS}" if way.in_turn else "m"


def _poisson(rng: random.Random, rate: float, count: int) -> list[float]:
    at, found = 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate)
        found.append(at)
    return found


async def _arriving(times: Sequence[float], serve: Callable[[int], Awaitable[T]]) -> list[T]:
    """Call `serve(i)` at times[i], and return what each returns."""

    async def later(number: int, at: float) -> T:
        await asyncio.sleep(at)
        return await serve(number)

    return await asyncio.gather(*(later(number, at) for number, at in enumerate(times)))


def main() -> None:
    """Print both figures."""
    print("| users a second |", " | ".join(WAYS), "|\n|---|" + "---|" * len(WAYS))
    for rate in RATES:
        print(
            f"| {rate:g} |", " | ".join(f"{gpts(way, rate):.0f} ms" for way in WAYS.values()), "|"
        )
    print("\n| | a chat's token | slowest tenth | a summary | leave a GPU |")
    print("|---|---|---|---|---|")
    for name, way in MIXES.items():
        one = mixed(way)
        figures = f"{one.chat_ms:.0f} ms | {one.slow_ms:.0f} ms | {one.summary_s:.1f} s"
        print(f"| {name} | {figures} | {one.leave_one} of {SUMMARIES} |")


if __name__ == "__main__":
    main()
