"""Does it pay to send a call where its prefix is? Parrot's Figure 17 on two simulated engines.

    python bench/bench_affinity.py [--requests 400]

Users of sixteen applications, four of each of the figure's four kinds at a quarter of their
lengths, arrive at random. Each engine's KV pool holds 60 % of the applications' prompts. Two ways
are compared on the same arrivals: weftline places each call (`app`), or they take the engines in
turn (`turns`), as a proxy in front of two servers does. The engines are weftline's own scheduler
and pool with the time of a profile (a step 10 ms, a prompt token 0.5 ms, a sequence 0.8 ms). Prints
JSON: mean seconds from a request's arrival to its end, per token of its answer, by requests a
second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from simulator.virtual import VirtualLoop, run

from weftline.protocol import Call, InOut, Placeholder, Sampling, Segment, Submit
from weftline_engine.simulated import SimulatedConfig, SimulatedEngine
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.driver import Driver
from weftline_server.session.registry import Registry, RegistryConfig

# Tokens of prompt, query and answer (Parrot, section 8.3).
KINDS = ((7437, 7, 704), (1116, 8, 89), (1694, 4, 631), (2031, 4, 416))
SCALE = 4
OF_EACH = 4
SHARE = 0.6  # of the prompts' tokens that a pool holds
RATES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WORDS = 2048


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


def applications(rng: random.Random) -> list[Application]:
    return [
        Application(_words(rng, prompt // SCALE), query, answer // SCALE)
        for prompt, query, answer in KINDS
        for _ in range(OF_EACH)
    ]


def requests(
    rng: random.Random, found: Sequence[Application], rate: float, count: int
) -> list[Request]:
    """Poisson arrivals, each of a random application."""
    made, at = [], 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        one = rng.choice(found)
        made.append(Request(at, one, _words(rng, one.query)))
    return made


def _words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(WORDS)}" for _ in range(count))


async def serve(
    loop: VirtualLoop, pool: int, todo: Sequence[Request], in_turn: bool
) -> list[float]:
    """Seconds per token of every answer; in turn, each engine is a model of its own."""
    registry = Registry(RegistryConfig(max_sessions=1 << 30))
    driver = Driver(registry, frozenset(), loop.time)
    names = ("m0", "m1") if in_turn else ("m", "m")

    def maker(model: str) -> Any:
        config = SimulatedConfig(kv_tokens=pool, words=WORDS, model=model)
        return lambda: SimulatedEngine(config, loop.time)

    makers = {f"e{i}": maker(model) for i, model in enumerate(names)}
    dispatcher = Dispatcher(makers, "app", driver.on_outcome, loop.time, wants=driver.wants)
    driver.attach(dispatcher)
    await dispatcher.start()

    async def user(number: int, one: Request) -> float:
        await asyncio.sleep(one.at - loop.time())
        session = driver.open("t")
        out = Placeholder(
            name="out",
            in_out=InOut.OUT,
            semantic_var_id="out",
            sampling=Sampling(max_tokens=one.application.answer, ignore_eos=True),
        )
        prompt = (Segment(text=f"{one.application.prompt} {one.query}"), Segment(output="out"))
        call = Call(name="ask", prompt=prompt, placeholders=(out,), model=names[number % 2])
        await driver.submit(session, Submit(calls=(call,)))
        await driver.get(session, "out")
        driver.close(session)
        return (loop.time() - one.at) / one.application.answer

    try:
        return await asyncio.gather(*(user(number, one) for number, one in enumerate(todo)))
    finally:
        await driver.shut_down()
        await dispatcher.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    found = applications(rng)
    pool = int(sum(len(one.prompt.split()) for one in found) * SHARE)
    curves: dict[str, dict[float, float]] = {"app": {}, "turns": {}}
    for rate in RATES:
        todo = requests(random.Random(args.seed + 1), found, rate, args.requests)
        for way in curves:
            spent = run(partial(serve, pool=pool, todo=todo, in_turn=way == "turns"))
            curves[way][rate] = round(sum(spent) / len(spent), 4)
    ratios = {rate: round(curves["turns"][rate] / curves["app"][rate], 2) for rate in RATES}
    print(
        json.dumps({"pool_tokens": pool, "s_per_token": curves, "turns_over_app": ratios}, indent=1)
    )


if __name__ == "__main__":
    main()
