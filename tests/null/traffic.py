"""Simulates chats beside other work: one throughput call, or map-reduces that a reader waits for.

A chat comes every `every_s` seconds, whatever the engines do. So the figures show what the other
work costs the chats, and how long it takes beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean

from tests.simulator.programs import Program, Step, perform
from tests.simulator.world import World, world
from weftline.contract.protocol import Criterion
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run

CHAT = Step(own=200, output=40)


@dataclass(slots=True)
class Beside:
    """The seconds of each chat and of each other job, the engines of their calls, and what a chat
    takes for each of its tokens."""

    chats_s: list[float] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)
    engines: dict[str, list[str]] = field(default_factory=dict)

    @property
    def chat_ms(self) -> float:
        """The milliseconds of a chat for each token of its answer, in the mean."""
        return 1000 * fmean(self.chats_s) / CHAT.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Chats come for `chats_s` seconds, and each of the `jobs` at its second.

    With `jobs_alone` the chats are left when the last job has ended: what they do then says nothing
    of the jobs.
    """

    every_s: float
    chats_s: float
    jobs: Mapping[float, Program]
    criterion: Criterion | None = None  # of the jobs
    chat: Step = CHAT
    jobs_alone: bool = False


def beside(
    config: SimulatedConfig, traffic: Traffic, engines: int = 1, policy: str = "app"
) -> Beside:
    """Run the traffic to its end."""

    async def main(loop: VirtualLoop) -> Beside:
        async with world(loop, *[config] * engines, policy=policy) as made:
            return await _all(made, traffic)

    return run(main)


async def _all(made: World, traffic: Traffic) -> Beside:
    result = Beside()

    async def one(at: float, kind: str, program: Program, criterion: Criterion | None) -> None:
        await asyncio.sleep(at)
        ran = await perform(made, program, f"{kind} {at}", criteria=criterion)
        (result.chats_s if kind == "chat" else result.jobs_s).append(ran.seconds)
        result.engines.setdefault(kind, []).extend(ran.engines)

    count = int(traffic.chats_s / traffic.every_s)
    chats = asyncio.gather(
        *(one(n * traffic.every_s, "chat", [traffic.chat], None) for n in range(count))
    )
    jobs = (one(at, "job", program, traffic.criterion) for at, program in traffic.jobs.items())
    await asyncio.gather(*jobs)
    if traffic.jobs_alone:
        chats.cancel()
    with suppress(asyncio.CancelledError):
        await chats
    return result
