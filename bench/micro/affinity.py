"""Measures the gain from sending calls to the engine that holds their prefix (Parrot, Figure 17).

    make bench-affinity [ARGS="--real --engines 4"]

Users of sixteen applications arrive at random: four of each of the figure's four kinds, at a
quarter of their lengths. Each of the engines, of which there are two without `--engines`, has a KV
pool that holds 60 % of the prompts.
Either weftline places each call (`app`), or calls go to the engines in turn (`turns`), as behind a
proxy. The engines are simulated: 10 ms a step, 0.5 ms a prompt token, 0.8 ms a sequence. With
`--real` they are embedded engines of SmolLM2 behind a real server, which share the cores evenly.

The results, by requests a second, are the mean seconds of a request for each token of its answer,
and the share of prompt tokens that the engines computed: medians of `--repeat` runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import string
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.harness import machine
from bench.harness.metrics import spread
from bench.harness.results import dated, stamp, write
from tests.simulator.world import asking, world
from weftline import AsyncClient
from weftline.contract.protocol import Call
from weftline.local import local_server
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.observe.view import graph_view

# Tokens of prompt, query and answer (Parrot, section 8.3).
KINDS = ((7437, 7, 704), (1116, 8, 89), (1694, 4, 631), (2031, 4, 416))
SCALE = 4
OF_EACH = 4
SHARE = 0.6  # of all prompts' tokens, that a pool holds
RATES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WORDS = 2048
# After a space, each of these is one token of SmolLM2.
PLAIN = tuple(string.ascii_lowercase)
# On two slow cores, an uncached prompt takes one core 3.5 s, and an answer takes 1 s. Engines in
# turn are busy all the time from 0.7 requests a second on.
REAL_RATES = (0.6, 0.8)
# The prompt of each application's first request is always computed: this is 16 % of all prompts'
# tokens with 100 requests, and 8 % with 200.
REQUESTS = 200
WAYS = ("app", "turns")


@dataclass(frozen=True, slots=True)
class Application:
    """A prompt that all users share, and the tokens of their queries and answers."""

    prompt: str
    query: int
    answer: int


@dataclass(frozen=True, slots=True)
class Request:
    """A user's question to an application, and when it comes."""

    at: float
    application: Application
    query: str


@dataclass(frozen=True, slots=True)
class Found:
    """A run's mean seconds per token of the answers, and its share of computed prompt tokens."""

    s_per_token: float
    computed: float


def applications(rng: random.Random, words: Sequence[str]) -> list[Application]:
    """Sixteen applications with different prompts."""
    return [
        Application(_text(rng, words, prompt // SCALE), query, answer // SCALE)
        for prompt, query, answer in KINDS
        for _ in range(OF_EACH)
    ]


def requests(
    seed: int, found: Sequence[Application], words: Sequence[str], rate: float, most: int
) -> list[Request]:
    """Poisson arrivals of users of random applications."""
    rng, made, at = random.Random(seed), [], 0.0
    for _ in range(most):
        at += rng.expovariate(rate)
        one = rng.choice(found)
        made.append(Request(at, one, _text(rng, words, one.query)))
    return made


def _text(rng: random.Random, words: Sequence[str], count: int) -> str:
    return " ".join(rng.choice(words) for _ in range(count))


def ask(one: Request, model: str) -> Call:
    """The call of a request."""
    text = f"{one.application.prompt} {one.query}"
    return replace(asking(text, "out", one.application.answer, ignore_eos=True), model=model)


def names(engines: int, in_turn: bool) -> list[str]:
    """The engines' model names; if calls go to them in turn, each has a name of its own."""
    return [f"m{number}" if in_turn else "m" for number in range(engines)]


async def simulated(
    loop: VirtualLoop, pool: int, todo: Sequence[Request], models: Sequence[str]
) -> Found:
    """Serve the requests on a simulated engine for each name."""
    configs = [SimulatedConfig(kv_tokens=pool, words=WORDS, model=model) for model in models]
    async with world(loop, *configs) as made:

        async def user(number: int, one: Request) -> tuple[float, Mapping[str, Any]]:
            await asyncio.sleep(one.at - made.now)
            session = made.driver.open("t")
            await made.ask(session, ask(one, models[number % len(models)]))
            graph = graph_view(session, ())
            made.driver.close(session)
            return (made.now - one.at) / one.application.answer, graph

        return summed(await asyncio.gather(*map(user, count(), todo)))


async def real(url: str, todo: Sequence[Request], models: Sequence[str]) -> Found:
    """Serve the requests on a real server with an engine for each name, in real time."""
    began = time.perf_counter()
    async with AsyncClient(url) as client:

        async def user(number: int, one: Request) -> tuple[float, Mapping[str, Any]]:
            await asyncio.sleep(one.at)
            called = ask(one, models[number % len(models)])
            answer = await client.run([called], ["out"], graph=True)
            spent = (time.perf_counter() - began - one.at) / one.application.answer
            assert answer.graph is not None, "it was asked for"
            return spent, answer.graph

        return summed(await asyncio.gather(*map(user, count(), todo)))


def summed(users: Sequence[tuple[float, Mapping[str, Any]]]) -> Found:
    """Sum up the seconds per token and the graph of each user's session."""
    calls = [call for _, graph in users for call in graph["calls"]]
    prompts, computed = (
        sum(call[name] for call in calls) for name in ("prompt_tokens", "computed_tokens")
    )
    mean = sum(seconds for seconds, _ in users) / len(users)
    return Found(round(mean, 4), round(computed / prompts, 3))


@contextmanager
def server(pool: int, models: Sequence[str], *options: str) -> Iterator[str]:
    """The URL of a server with an embedded engine for each name, whose pools hold `pool` tokens.

    Each has its share of the cores, or one core that others have too where there are too few.
    """
    cores = sorted(os.sched_getaffinity(0))
    entry = (
        '[[engine]]\nengine = "torch"\nname = "e{}"\ncall_it = "{}"\nkv_tokens = {}\ncores = {}\n'
    )
    each = max(1, len(cores) // len(models))
    shares = ([cores[(at * each + n) % len(cores)] for n in range(each)] for at in count())
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "weftline.toml")
        config.write_text(
            "".join(
                entry.format(number, name, pool, share)
                for number, (name, share) in enumerate(zip(models, shares, strict=False))
            )
        )
        with local_server("--config", str(config), *options) as url:
            yield url


def measured(args: argparse.Namespace, rate: float, pool: int) -> dict[str, list[Found]]:
    """The results of each way in each repetition; the ways alternate."""
    words = PLAIN if args.real else [f"w{number}" for number in range(WORDS)]
    runs: dict[str, list[Found]] = {way: [] for way in WAYS}
    for repetition in range(args.repeat):
        apps = applications(random.Random(0), words)
        todo = requests(1 + repetition, apps, words, rate, args.requests)
        for way, found in runs.items():
            models = names(args.engines, in_turn=way == "turns")
            if args.real:
                # Each run has a new server, so that it begins with empty caches.
                with server(pool, models) as url:
                    found.append(asyncio.run(real(url, todo, models)))
            else:
                found.append(run(partial(simulated, pool=pool, todo=todo, models=models)))
            print(rate, way, found[-1], flush=True)
    return runs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", help="requests a second, separated by commas")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each way, in turns")
    parser.add_argument("--real", action="store_true", help="run on engines of SmolLM2")
    parser.add_argument("--engines", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"default: {REQUESTS}")
    args = parser.parse_args()
    rates = REAL_RATES if args.real else RATES
    if args.rates is not None:
        rates = tuple(map(float, args.rates.split(",")))
    pool = int(sum(prompt // SCALE for prompt, _, _ in KINDS) * OF_EACH * SHARE)
    runs = {rate: measured(args, rate, pool) for rate in rates}
    about = machine.describe()
    sizes = {"requests": args.requests, "engines": args.engines}
    report = {**stamp(about), **sizes, "repeat": args.repeat, "pool_tokens": pool}
    for name in ("s_per_token", "computed"):
        report[name] = {
            way: {
                rate: statistics.median(getattr(one, name) for one in found[way])
                for rate, found in runs.items()
            }
            for way in WAYS
        }
    report["turns_over_app"] = {
        rate: spread(
            [
                turns.s_per_token / app.s_per_token
                for app, turns in zip(*(found[way] for way in WAYS), strict=True)
            ]
        ).to_json()
        for rate, found in runs.items()
    }
    print(write(dated(about), f"affinity{'-real' * args.real}", report).read_text())


if __name__ == "__main__":
    main()
