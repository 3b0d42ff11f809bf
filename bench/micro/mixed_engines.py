"""Measures chats beside summaries on several real engines (Parrot, Figure 19).

    make bench-mixed [ARGS="--engines 4"]

Chats arrive at random, and three map-reduce summaries arrive together every GAP_S seconds. Each
engine is an embedded one of SmolLM2 behind one real server. The engines share the cores evenly, and
prompts and answers are a quarter of the figure's. Calls are placed for applications (`app`), for
applications whose summaries are for throughput, or as requests (`request`). The ways alternate.

The results are medians of `--repeat` runs: a chat's milliseconds a token, those of the slowest
tenth, the seconds of a summary, and the share of summaries that left an engine to the chats.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness import machine
from bench.harness.results import dated, stamp, write
from bench.micro.affinity import PLAIN, server
from tests.simulator.programs import Program, Step, application, map_reduce
from weftline import AsyncClient
from weftline.contract.protocol import Criterion

CHAT: Program = [Step(own=100, output=50)]
SUMMARY = map_reduce(16, 256, 12)
TOGETHER, GAP_S = 3, 15.0
POOL = 8192  # tokens of an engine's KV cache
WORDS = tuple(f"{letter} " for letter in PLAIN)
WAYS: Mapping[str, tuple[str, Criterion | None]] = {
    "app": ("app", None),
    "app, summaries for throughput": ("app", Criterion.THROUGHPUT),
    "request": ("request", None),
}


@dataclass(frozen=True, slots=True)
class Beside:
    """A run's milliseconds of a chat's token, in the mean and of the slowest tenth, the seconds of
    a summary, and the share of summaries without a chunk on one of the engines."""

    chat_ms: float
    slow_ms: float
    summary_s: float
    leave_one: float


async def _ask(client: AsyncClient, program: Program, seed: object, wish: Criterion | None) -> Any:
    """The seconds of an application, and how many engines its calls were on, without the last."""
    began = time.perf_counter()
    calls, wanted = application(program, seed, wish, WORDS)
    graph = (await client.run(calls, wanted, graph=True)).graph
    assert graph is not None, "it was asked for"
    engines = {call["engine"] for call in graph["calls"][:-1]}
    return time.perf_counter() - began, len(engines)


async def beside(
    url: str, engines: int, seed: int, seconds: float, rate: float, wish: Criterion | None
) -> Beside:
    """Chats and summaries arrive for so many seconds."""
    rng, at = random.Random(seed), 0.0
    chats: list[float] = []
    while (at := at + rng.expovariate(rate)) < seconds:
        chats.append(at)
    summaries = [GAP_S * (n // TOGETHER) for n in range(TOGETHER * int(seconds // GAP_S))]
    async with AsyncClient(url) as client:

        async def later(at: float, ask: Callable[[], Awaitable[Any]]) -> Any:
            await asyncio.sleep(at)
            return await ask()

        def chat(number: int) -> Callable[[], Awaitable[Any]]:
            return lambda: _ask(client, CHAT, f"{seed} chat {number}", None)

        def summary(number: int) -> Callable[[], Awaitable[Any]]:
            return lambda: _ask(client, SUMMARY, f"{seed} summary {number}", wish)

        talks, sums = await asyncio.gather(
            asyncio.gather(*(later(at, chat(n)) for n, at in enumerate(chats))),
            asyncio.gather(*(later(at, summary(n)) for n, at in enumerate(summaries))),
        )
    each = [1e3 * spent / CHAT[0].output for spent, _ in talks]
    return Beside(
        statistics.fmean(each),
        sorted(each)[len(each) * 9 // 10],
        statistics.fmean(spent for spent, _ in sums),
        statistics.fmean(used < engines for _, used in sums),
    )


def measured(args: argparse.Namespace) -> dict[str, list[Beside]]:
    """The results of each way in each repetition. Each run has a new server."""
    runs: dict[str, list[Beside]] = {way: [] for way in WAYS}
    for repetition in range(args.repeat):
        for way, (policy, wish) in WAYS.items():
            with server(POOL, ["m"] * args.engines, "--policy", policy) as url:
                one = beside(url, args.engines, 19 + repetition, args.seconds, args.rate, wish)
                runs[way].append(asyncio.run(one))
            print(way, runs[way][-1], flush=True)
    return runs


def medians(runs: Sequence[Beside]) -> dict[str, float]:
    """The median of each result."""
    rows = [asdict(one) for one in runs]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each way (default: 3)")
    parser.add_argument("--engines", type=int, default=4, help="how many (default: 4)")
    parser.add_argument("--seconds", type=float, default=45, help="of arrivals (default: 45)")
    parser.add_argument("--rate", type=float, default=3, help="chats a second (default: 3)")
    args = parser.parse_args()
    about = machine.describe()
    runs = measured(args)
    sizes = {name: getattr(args, name) for name in ("engines", "repeat", "seconds", "rate")}
    report = {**stamp(about), **sizes, "ways": {way: medians(each) for way, each in runs.items()}}
    print(write(dated(about), "mixed-engines", report).read_text())


if __name__ == "__main__":
    main()
