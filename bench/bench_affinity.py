"""Does it pay to send a call where its prefix is? Parrot's Figure 17 on two engines.

    make bench-affinity [ARGS="--requests 60 --real"]

Users of sixteen applications, four of each of the figure's four kinds at a quarter of their
lengths, arrive at random. Each engine's KV pool holds 60 % of the applications' prompts. Two ways
are compared on the same arrivals: weftline places each call (`app`), or they take the engines in
turn (`turns`), as a proxy in front of two servers does. The engines are weftline's own scheduler
and pool with the time of a profile (a step 10 ms, a prompt token 0.5 ms, a sequence 0.8 ms); with
`--real`, two embedded ones of SmolLM2 behind a real server. Prints mean seconds from a request's
arrival to its end, per token of its answer, by requests a second, and writes them to
bench/results/DATE-MACHINE/affinity.json, or affinity-real.json.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import random
import string
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.gpu_report import write
from bench.harness import machine
from bench.simulator.virtual import VirtualLoop, run
from bench.simulator.world import world
from weftline import AsyncClient
from weftline.local import local_server
from weftline.protocol import Call, InOut, Placeholder, Sampling, Segment, Submit
from weftline_engine.simulated import SimulatedConfig

# Tokens of prompt, query and answer (Parrot, section 8.3).
KINDS = ((7437, 7, 704), (1116, 8, 89), (1694, 4, 631), (2031, 4, 416))
SCALE = 4
OF_EACH = 4
SHARE = 0.6  # of the prompts' tokens that a pool holds
RATES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WORDS = 2048
# Of one token each in SmolLM2, behind a space.
PLAIN = tuple(string.ascii_lowercase)
REAL_RATES = (1.0, 1.5)


@dataclass(frozen=True, slots=True)
class Application:
    """A prompt that all its users share, and how long their queries and answers are."""

    prompt: str
    query: int
    answer: int


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    application: Application
    query: str


def applications(rng: random.Random, words: Sequence[str]) -> list[Application]:
    """Sixteen, of prompts that have nothing in common."""
    return [
        Application(_text(rng, words, prompt // SCALE), query, answer // SCALE)
        for prompt, query, answer in KINDS
        for _ in range(OF_EACH)
    ]


def requests(
    seed: int, found: Sequence[Application], words: Sequence[str], rate: float, count: int
) -> list[Request]:
    """Poisson arrivals, each of a random application."""
    rng, made, at = random.Random(seed), [], 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        one = rng.choice(found)
        made.append(Request(at, one, _text(rng, words, one.query)))
    return made


def _text(rng: random.Random, words: Sequence[str], count: int) -> str:
    return " ".join(rng.choice(words) for _ in range(count))


def ask(one: Request, model: str) -> Call:
    """The call that a request is."""
    sampling = Sampling(max_tokens=one.application.answer, ignore_eos=True, temperature=0.0)
    out = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id="out", sampling=sampling)
    prompt = (Segment(text=f"{one.application.prompt} {one.query}"), Segment(output="out"))
    return Call(name="ask", prompt=prompt, placeholders=(out,), model=model)


def names(in_turn: bool) -> tuple[str, str]:
    """The engines' models: in turn, each engine is a model of its own."""
    return ("m0", "m1") if in_turn else ("m", "m")


async def simulated(
    loop: VirtualLoop, pool: int, todo: Sequence[Request], in_turn: bool
) -> list[float]:
    """Seconds per token of every answer."""
    models = names(in_turn)
    configs = [SimulatedConfig(kv_tokens=pool, words=WORDS, model=model) for model in models]
    async with world(loop, *configs) as made:

        async def user(number: int, one: Request) -> float:
            await asyncio.sleep(one.at - made.now)
            session = made.driver.open("t")
            await made.driver.submit(session, Submit(calls=(ask(one, models[number % 2]),)))
            await made.driver.readers.get(session, "out")
            made.driver.close(session)
            return (made.now - one.at) / one.application.answer

        return await asyncio.gather(*(user(number, one) for number, one in enumerate(todo)))


async def real(url: str, todo: Sequence[Request], in_turn: bool) -> list[float]:
    """The same by the clock on the wall, of a server with two engines."""
    began = time.perf_counter()
    async with AsyncClient(url) as client:

        async def user(number: int, one: Request) -> float:
            await asyncio.sleep(one.at)
            await client.run([ask(one, names(in_turn)[number % 2])], ["out"])
            return (time.perf_counter() - began - one.at) / one.application.answer

        return await asyncio.gather(*(user(number, one) for number, one in enumerate(todo)))


@contextmanager
def server(pool: int, in_turn: bool) -> Iterator[str]:
    """The URL of a server with two embedded engines whose pools hold `pool` tokens each."""
    entry = '[[engine]]\nengine = "torch"\nname = "e{}"\ncall_it = "{}"\nkv_tokens = {}\n'
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "weftline.toml")
        found = enumerate(names(in_turn))
        config.write_text("".join(entry.format(i, name, pool) for i, name in found))
        with local_server("--config", str(config)) as url:
            yield url


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="on two engines of SmolLM2")
    args = parser.parse_args()
    words = PLAIN if args.real else [f"w{number}" for number in range(WORDS)]
    found = applications(random.Random(args.seed), words)
    pool = int(sum(len(one.prompt.split()) for one in found) * SHARE)
    curves: dict[str, dict[float, float]] = {"app": {}, "turns": {}}
    rates = REAL_RATES if args.real else RATES
    for rate in rates:
        todo = requests(args.seed + 1, found, words, rate, args.requests)
        for way, curve in curves.items():
            in_turn = way == "turns"
            if args.real:
                # A server each, so that every run begins with empty caches.
                with server(pool, in_turn) as url:
                    spent = asyncio.run(real(url, todo, in_turn))
            else:
                spent = run(partial(simulated, pool=pool, todo=todo, in_turn=in_turn))
            curve[rate] = round(sum(spent) / len(spent), 4)
    ratios = {rate: round(curves["turns"][rate] / curves["app"][rate], 2) for rate in rates}
    about = machine.describe()
    asked = {"requests": args.requests, "pool_tokens": pool}
    report = {**asked, "s_per_token": curves, "turns_over_app": ratios, "machine": about}
    name = "affinity-real.json" if args.real else "affinity.json"
    write(report, datetime.date.today().isoformat(), machine.slug(about["cores"]), name)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
