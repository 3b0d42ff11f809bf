"""Simulates a mix of applications on any number of engines, under either policy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from weftline_engine.simulated import SimulatedConfig
from weftline_engine.virtual_time import VirtualLoop, run

from .programs import Program, Step, chain, map_reduce, perform
from .world import World, world

ROLES = 16  # copilots with a long system prompt each
ROLE_TOKENS = 768


def mix(seed: int) -> tuple[str, Program]:
    """The kind and the calls of application number `seed`, drawn at random."""
    rng = random.Random(f"mix {seed}")
    kind = rng.choices(("chain", "map-reduce", "copilot", "chat"), (2, 2, 4, 4))[0]
    if kind == "chain":
        return kind, chain(rng.randint(3, 8), own=160, output=16)
    if kind == "map-reduce":
        return kind, map_reduce(rng.randint(4, 12), own=160, output=16)
    if kind == "copilot":
        role = f"role {rng.randrange(ROLES)}"
        return kind, [Step(own=24, output=24, role=role, shared=ROLE_TOKENS)]
    return kind, [Step(own=rng.randint(32, 256), output=rng.randint(8, 48))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The applications' completion times in simulated seconds; `busy` is the engines' busy
    share."""

    engines: int
    policy: str
    calls: int
    applications: int
    mean_s: float
    p90_s: float
    means_s: Mapping[str, float]
    cached: float  # share of prompt tokens that came from the cache
    busy: float


def rate(config: SimulatedConfig, load: float) -> float:
    """Applications a second that keep one engine busy for the share `load` of its time, if nothing
    is cached and sixteen sequences share a step."""
    cost = config.cost
    some = [mix(seed)[1] for seed in range(200)]
    own = fmean(sum(step.own + step.shared for step in program) for program in some)
    output = fmean(sum(step.output for step in program) for program in some)
    decode = cost.step_s / 16 + cost.sequence_s
    return load / (own * cost.fill_s + output * decode)


def simulate(
    engines: int, calls: int, policy: str, config: SimulatedConfig, load: float = 0.8
) -> Outcome:
    """Run at least `calls` calls, which arrive at random, until the last one has ended."""

    async def main(loop: VirtualLoop) -> Outcome:
        async with world(loop, *[config] * engines, policy=policy) as made:
            return await _all(made, calls, policy, engines * rate(config, load))

    return run(main)


async def _all(made: World, calls: int, policy: str, per_second: float) -> Outcome:
    rng = random.Random(0)
    lasted: dict[str, list[float]] = {}
    prompts = count = number = 0
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, kind: str, program: Program) -> None:
        lasted.setdefault(kind, []).append((await perform(made, program, number)).seconds)

    while count < calls:
        await asyncio.sleep(rng.expovariate(per_second))
        kind, program = mix(number)
        task = asyncio.create_task(one(number, kind, program))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number, count = number + 1, count + len(program)
        prompts += prompt_tokens(program)
    arrived = made.now
    busy = fmean(engine.busy_s for engine in made.engines) / arrived
    await asyncio.gather(*tasks)
    everyone = sorted(s for found in lasted.values() for s in found)
    return Outcome(
        engines=len(made.engines),
        policy=policy,
        calls=count,
        applications=number,
        mean_s=fmean(everyone),
        p90_s=everyone[int(0.9 * len(everyone))],
        means_s={kind: fmean(found) for kind, found in sorted(lasted.items())},
        cached=1 - sum(engine.computed for engine in made.engines) / prompts,
        busy=busy,
    )


def prompt_tokens(program: Program) -> int:
    """The prompt tokens of all calls, with the outputs that they read."""
    return sum(
        step.shared + step.own + sum(program[i].output for i in step.reads) for step in program
    )


def compare(found: Sequence[Outcome]) -> dict[int, float]:
    """By number of engines: the mean seconds under `request` divided by those under `app`."""
    means = {(one.engines, one.policy): one.mean_s for one in found}
    return {
        engines: means[engines, "request"] / mean
        for (engines, policy), mean in means.items()
        if policy == "app" and (engines, "request") in means
    }
