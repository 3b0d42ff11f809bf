"""Whatever the graphs and the engines, every variable is set, in simulated time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.null.test_switches import step, words
from tests.simulator.world import world
from weftline.contract.protocol import Call, Criterion, Segment, SubmitBody
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

# 300 tokens in flight make a step four times as long, so the step bound applies early.
COST = StepCost(step_s=0.010, fill_s=0.0, sequence_s=0.0, token_s=0.0001)
LONG_S = 3600.0  # A graph takes seconds of simulated time.

CRITERIA = st.sampled_from([None, None, *Criterion])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Call, ...]:
    """Generate up to eight calls, each reading outputs of some calls before it."""
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 8))):
        reads = draw(st.sets(st.sampled_from(range(number)), max_size=4)) if number else set()
        names = [f"v{read}" for read in sorted(reads)]
        own = words(draw(st.integers(0, 3)) * 40, draw(st.integers(1, 150)))
        prompt = (own, *(Segment(input=name) for name in names))
        call = step(prompt, f"v{number}", *names, tokens=draw(st.integers(1, 10)))
        calls.append(replace(call, criteria=draw(CRITERIA)))
    return tuple(calls)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(graphs(), min_size=1, max_size=3),
    st.integers(1, 2),
    st.sampled_from([256, 512, 65_536]),
    st.sampled_from([2, 64]),
)
def test_every_graph_ends(
    all_graphs: list[tuple[Call, ...]], engines: int, kv_tokens: int, max_running: int
) -> None:
    """The engines have few places, a cache for little more than one prompt, and a tight step bound
    beside awaited calls.
    """
    config = SimulatedConfig(cost=COST, kv_tokens=kv_tokens, max_running=max_running)

    async def main(loop: VirtualLoop) -> int:
        async with world(loop, *[config] * engines) as made:

            async def ended(calls: tuple[Call, ...]) -> int:
                session = made.driver.open("t")
                await made.driver.submit(session, SubmitBody(calls=calls))
                for call in calls:
                    assert (await made.driver.readers.get(session, call.name)).text
                return len(calls)

            return sum(await asyncio.gather(*map(ended, all_graphs)))

    async def in_time(loop: VirtualLoop) -> int:
        return await asyncio.wait_for(main(loop), LONG_S)

    assert run(in_time) == sum(map(len, all_graphs))
