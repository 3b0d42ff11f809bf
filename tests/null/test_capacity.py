"""How much runs beside a chat: the engine's measured profile, seen through server and engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.null.test_switches import step, words
from tests.simulator.world import World, asking, world
from weftline.contract.protocol import Criterion, Segment, SubmitBody
from weftline_engine.api import ITL_S, PATIENCE_S
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

# A step takes 10 ms, and 1 ms more for each 100 tokens in flight. 3,000 tokens reach 40 ms.
COST = StepCost(step_s=0.010, fill_s=0.0, sequence_s=0.0, token_s=0.00001)
OUTPUT = 50


def one_call(prompt: str, variable: str, tokens: int, **more: Any) -> SubmitBody:
    return SubmitBody(calls=(replace(asking(prompt, variable, tokens), **more),))


async def beside_a_batch(made: World) -> tuple[float, list[str]]:
    """Run 20 calls of 450 tokens for throughput, then a chat: its seconds a token, and
    all values.
    """
    batch = made.driver.open("batch")
    for number in range(20):
        prompt = f"w{number} " * 400
        submit = one_call(prompt, f"v{number}", OUTPUT, criteria=Criterion.THROUGHPUT)
        await made.driver.submit(batch, submit)
    await asyncio.sleep(0.3)  # all 20 run
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
    """Without the profile, a token takes as long as a step of all calls. The texts are the same."""
    slow, without = measured(bounds=False)
    quick, values = measured(bounds=True)
    assert quick < 1.1 * ITL_S < 2 * ITL_S < slow
    assert values == without


async def maps_beside_a_chat(made: World) -> list[str]:
    """A chat runs. Four texts of 900 tokens are summarised, and each summary is judged behind 1,500
    tokens of rules. A last call joins the judgements behind 1,500 tokens more.
    """
    chat = made.driver.open("chat")
    await made.driver.submit(chat, one_call("w7 " * 100, "answer", OUTPUT))
    await asyncio.sleep(0.1)
    calls = []
    for n in range(4):
        calls.append(step((words(n, 900),), f"note{n}", tokens=OUTPUT))
        rules = (words(100 * n, 1500), Segment(input=f"note{n}"))
        calls.append(step(rules, f"judged{n}", f"note{n}", tokens=OUTPUT))
    notes = [f"note{n}" for n in range(4)]
    joined = (words(50, 1500), *(Segment(input=note) for note in notes))
    calls.append(step(joined, "joined", *notes, tokens=OUTPUT))
    session = made.driver.open("maps")
    await made.driver.submit(session, SubmitBody(calls=tuple(calls)))
    names = ("joined", *(f"judged{n}" for n in range(4)))
    return [(await made.driver.readers.get(session, name)).text for name in names]


@pytest.mark.parametrize("kv_tokens", [65_536, 4_096])
def test_early_fills_do_not_block_the_calls_they_wait_for(kv_tokens: int) -> None:
    """Beside the chat not all texts may start. Calls that wait for their summaries are filled
    early, and hold more tokens than may run beside a chat, and more than the cache has. They must
    not keep the last text waiting for ever.
    """

    async def main(loop: VirtualLoop) -> list[str]:
        async with world(loop, SimulatedConfig(cost=COST, kv_tokens=kv_tokens)) as made:
            return await asyncio.wait_for(maps_beside_a_chat(made), 100)

    assert all(run(main))


def test_a_waiting_job_is_placed_after_a_minute() -> None:
    """A job waits beside a chat of 9,000 tokens, and no other op ends to trigger placement. The job
    is placed when its minute of patience is over, and not before.
    """

    async def main(loop: VirtualLoop) -> list[int]:
        async with world(loop, SimulatedConfig(cost=COST)) as made:
            chat, job = made.driver.open("chat"), made.driver.open("job")
            long = one_call("w7 " * 100, "answer", 9000, criteria=Criterion.TPOT)
            await made.driver.submit(chat, long)
            await asyncio.sleep(0.1)  # the job has less work left, and would go first
            short = one_call("w9 " * 100, "done", OUTPUT, criteria=Criterion.THROUGHPUT)
            await made.driver.submit(job, short)
            queued = []
            for seconds in (PATIENCE_S - 1, 3):
                await asyncio.sleep(seconds)
                queued.append(made.driver.dispatcher.queued)
            return queued

    assert run(main) == [1, 0]
