"""How much runs beside a chat: the engine's measured profile, through server and engine."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.simulator.virtual import VirtualLoop, run
from bench.simulator.world import World, world
from weftline.protocol import Call, Criterion, InOut, Placeholder, Sampling, Segment, Submit
from weftline_engine.simulated import SimulatedConfig, StepCost
from weftline_server.schedule.capacity import TOKEN_S

# 10 ms, and one more for each 100 tokens in flight: 40 ms are reached with 3,000.
COST = StepCost(step_s=0.010, fill_s=0.0, sequence_s=0.0, token_s=0.00001)
OUTPUT = 50


def one_call(prompt: str, variable: str, tokens: int, **more: Any) -> Submit:
    sampling = Sampling(max_tokens=tokens, temperature=0.0)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=sampling)
    segments = (Segment(text=prompt), Segment(output="o"))
    return Submit(calls=(Call(name="c", prompt=segments, placeholders=(out,), **more),))


async def beside_a_batch(made: World) -> tuple[float, list[str]]:
    """20 calls of 450 tokens for throughput, then a chat: its seconds a token, and all values."""
    batch = made.driver.open("batch")
    for number in range(20):
        prompt = f"w{number} " * 400
        submit = one_call(prompt, f"v{number}", OUTPUT, criteria=Criterion.THROUGHPUT)
        await made.driver.submit(batch, submit)
    await asyncio.sleep(0.3)  # all of them run
    chat = made.driver.open("chat")
    await made.driver.submit(chat, one_call("w7 " * 100, "answer", OUTPUT))
    began = made.now
    values = [(await made.driver.readers.get(chat, "answer")).text]
    lasted = made.now - began
    for number in range(20):
        values.append((await made.driver.readers.get(batch, f"v{number}")).text)
    return lasted / OUTPUT, values


def measured(bounds: bool) -> tuple[float, list[str]]:
    async def main(loop: VirtualLoop) -> tuple[float, list[str]]:
        config = SimulatedConfig(cost=COST, bounds=bounds)
        async with world(loop, config) as made:
            return await beside_a_batch(made)

    return run(main)


def test_a_batch_pauses_so_that_a_chat_gets_its_tokens_in_time() -> None:
    """Without the profile a token takes as long as the step of all; the texts are the same."""
    slow, without = measured(bounds=False)
    quick, values = measured(bounds=True)
    assert quick < 1.1 * TOKEN_S < 2 * TOKEN_S < slow
    assert values == without
