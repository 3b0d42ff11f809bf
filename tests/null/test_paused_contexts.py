"""A cache that is full of paused contexts: some are given up, and every request ends."""

from __future__ import annotations

import asyncio
import random

from tests.simulator.world import World, chatting, world
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost, asking
from weftline_engine.pretend.virtual_time import VirtualLoop, run

# A request has about 330 tokens, so the cache holds the contexts of two requests.
POOL = SimulatedConfig(
    cost=StepCost(step_s=0.017, fill_s=4e-5, sequence_s=4e-5, copy_s=1.8e-5),
    kv_tokens=800,
    tools=("clock", "walk"),
)
PROMPT, OUTPUT, FAST = 300, 20, 8


def words(rng: random.Random, count: int) -> str:
    return "".join(f"w{rng.randrange(2048)} " for _ in range(count))


async def agent(made: World, number: int, tool: str, pause_s: float) -> None:
    """Two turns, with a tool between them."""
    rng = random.Random(number)
    said = f"{words(rng, PROMPT + number)}{asking(tool)} "
    session = made.driver.open("agents")
    answer = await made.ask(session, chatting(said, "first", tool, OUTPUT))
    await asyncio.sleep(pause_s)
    said += answer + words(rng, 10)
    assert await made.ask(session, chatting(said, "last", tool, OUTPUT))
    made.driver.close(session)


def test_every_request_ends_though_all_contexts_are_paused() -> None:
    """One agent pauses for a minute. Eight others need its room meanwhile, and all nine end: the
    slow one right after its pause, the others long before.
    """

    async def main(loop: VirtualLoop) -> list[float]:
        async with world(loop, POOL) as made:

            async def ended(number: int, tool: str, pause_s: float) -> float:
                await asyncio.sleep(number / 10)
                await agent(made, number, tool, pause_s)
                return made.now

            fast = [ended(n, "clock", 0.01) for n in range(1, 1 + FAST)]
            return list(await asyncio.gather(ended(0, "walk", 60.0), *fast))

    slow, *fast = run(main)
    assert max(fast) < 30.0 < 60.0 < slow < 65.0


def test_an_engine_gives_up_contexts_that_nobody_frees() -> None:
    """Nine requests end one after another on a cache for two, and none of their contexts is freed.
    The engine evicts the oldest, because nothing else could run. Each request still gets its
    tokens, and the first one then continues by its name.
    """

    async def main(loop: VirtualLoop) -> list[int]:
        engine = SimulatedEngine(POOL, loop.time)
        await engine.start()
        ends = []

        async def ask(name: str, tokens: tuple[int, ...], parent: str | None = None) -> None:
            sampling = api.SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
            kind = api.Kind.GENERATE
            engine.submit(
                api.Op(
                    id=name,
                    kind=kind,
                    context=name,
                    parent=parent,
                    tokens=tokens,
                    sampling=sampling,
                )
            )
            async for events in engine.events():
                ends.extend(e.usage.output_tokens for e in events if isinstance(e, api.Finished))
                assert not any(isinstance(e, api.Failed) for e in events)
                if any(isinstance(e, api.Finished) for e in events):
                    return

        for number in range(9):
            await ask(f"c{number}", tuple(range(number, number + PROMPT)))
        await ask("again", (5, 6, 7), parent="c0")
        await engine.close()
        return ends

    assert run(main) == [OUTPUT] * 10
