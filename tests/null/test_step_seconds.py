"""How many tokens of a prompt a step computes beside answers that are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_engine import api
from weftline_engine.bookkeeping.schedule.step_seconds import (
    LEAST_TOKENS,
    ItlLimit,
    PromptSeconds,
    StepSeconds,
)
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

costs = st.builds(
    StepSeconds,
    step_s=st.floats(0.0, 0.1),
    fill_s=st.floats(1e-7, 1e-2),
    sequence_s=st.floats(0.0, 1e-3),
    token_s=st.floats(0.0, 1e-6),
    attend_s=st.floats(0.0, 1e-7),
)
# An 8B shape on an H100, about: a token takes 20 us, and 1 ns for each token before it.
GPU = StepSeconds(step_s=0.007, fill_s=20e-6, token_s=48e-9, attend_s=1e-9)


@given(costs, st.floats(-1.0, 10.0), st.integers(0, 200_000), st.integers(0, 100_000))
def test_as_many_as_fit_into_the_time(
    cost: StepSeconds, left_s: float, behind: int, most: int
) -> None:
    """Never more than that, and not one less than fits, but for rounding."""
    found = cost.fitting(left_s, behind, most)
    assert 0 <= found <= most
    if found:
        assert cost.added(found, behind) <= left_s * (1 + 1e-9)
    if found < most:
        assert cost.added(found + 1, behind) > left_s * (1 - 1e-9)


@given(costs, st.floats(0.0, 1.0), st.integers(1, 64), st.lists(st.integers(0, 200_000)))
def test_prompts_keep_the_limit_and_the_first_one_advances(
    cost: StepSeconds, limit_s: float, decoding: int, prompts: list[int]
) -> None:
    """The step ends within the limit, or within twice the time of decoding alone, unless the first
    prompt has the least that it gets."""
    alone_s = cost.seconds(0, decoding, 1000)
    room, spent_s = PromptSeconds(ItlLimit(cost, limit_s), decoding, 1000), 0.0
    for number, behind in enumerate(prompts):
        tokens = room.allow(behind, 2048)
        assert number or tokens >= LEAST_TOKENS
        if tokens > LEAST_TOKENS or number:
            spent_s += cost.added(tokens, behind) if tokens else 0.0
            if number == 0 or tokens:
                assert alone_s + spent_s <= max(limit_s, 2 * alone_s) * (1 + 1e-6)
        else:
            spent_s = cost.added(tokens, behind)
        room.spend(behind, tokens)


def test_a_chunk_is_smaller_the_more_is_before_it() -> None:
    """Beside four sequences of 80,000 tokens, which a step of 22 ms decodes alone."""

    def allowed(limit_s: float, behind: int, most: int = 2048) -> int:
        return PromptSeconds(ItlLimit(GPU, limit_s), 4, 320_000).allow(behind, most)

    assert [allowed(0.1, behind) for behind in (0, 10_000, 90_000)] == [2048, 2048, 664]
    assert allowed(0.1, 90_000, 300) == 300, "all that is left of it"
    assert allowed(0.0, 90_000) == 163, "as long as decoding takes"


def longest_wait(itl_s: float | None, criterion: str = "latency") -> float:
    """The longest time between two tokens of an answer, while a prompt of 2,000 tokens comes."""

    async def main(loop: VirtualLoop) -> float:
        cost = StepCost(step_s=0.01, fill_s=1e-3, sequence_s=0.0)
        config = SimulatedConfig(cost=cost, itl_s=itl_s)
        engine = SimulatedEngine(config, loop.time)
        await engine.start()
        for name, prompt, answer in (("answer", range(16), 100), ("prompt", range(40, 2040), 1)):
            sampling = api.SamplingParams(max_tokens=answer)
            hints = api.Hints(criterion=criterion)
            engine.submit(
                api.Op(
                    id=name,
                    kind=api.Kind.GENERATE,
                    context=name,
                    tokens=tuple(prompt),
                    sampling=sampling,
                    hints=hints,
                )
            )
        ended = 0
        async for events in engine.events():
            ended += sum(isinstance(one, api.Finished) for one in events)
            if ended == 2:
                break
        await engine.close()
        assert engine.computed == 2016
        return round(max(engine.between), 3)

    return run(main)


@pytest.mark.parametrize(
    ("itl_s", "criterion", "wait_s"),
    [
        (None, "latency", 0.521),  # a whole step of 512 tokens
        (0.2, "latency", 0.2),
        (0.05, "latency", 0.138),  # the least that a prompt gets
        (0.2, "throughput", 0.521),  # nobody reads its tokens
    ],
)
def test_a_prompt_beside_an_answer_keeps_the_limit(
    itl_s: float | None, criterion: str, wait_s: float
) -> None:
    """A step takes 10 ms, and 1 ms for each prompt token."""
    assert longest_wait(itl_s, criterion) == wait_s
