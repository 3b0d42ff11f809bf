"""Whether a vLLM loads keys and values from host memory or computes them, by what both took."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.remote.vllm.reloads import TRIAL, ReloadCosts
from weftline_engine.remote.vllm.step_meter import PlannedWork, StepMeter

STEP_S, TOKEN_S = 0.02, 0.0001  # of a step that decodes, and of a prompt token
LATENCY_S, COPY_S = 0.05, 0.00001  # of any load, and of a token in it


def measured(latency_s: float = LATENCY_S, copy_s: float = COPY_S) -> ReloadCosts:
    """Costs after steps that decode, two prompts, and loads of two sizes."""
    steps, now = StepMeter(), 0.0
    costs = ReloadCosts(steps)
    for prompt in (0, 0, 1000, 0, 500):
        steps.planned(PlannedWork(prompt, decoding=1, held=100), now)
        now += STEP_S + TOKEN_S * prompt
        steps.computed(now)
    for name, tokens in (("a", 100), ("b", 4000)):
        costs.begun(name, tokens, now)
        costs.loaded(name, now + latency_s + copy_s * tokens)
    return costs


def filled(tokens: int, seconds: float) -> StepMeter:
    """One prompt of so many tokens was computed in so many seconds."""
    steps = StepMeter()
    steps.planned(PlannedWork(tokens), 0.0)
    steps.computed(seconds)
    return steps


def test_a_load_pays_from_the_length_on_at_which_it_is_as_fast() -> None:
    """A load takes 50 ms and 10 us a token; computing takes 100 us a token. 556 tokens take as
    long in both ways. Beside one running request, computing costs twice as much: 263 tokens."""
    costs = measured()
    assert costs.least(0) == pytest.approx(LATENCY_S / (TOKEN_S - COPY_S))
    assert [costs.pays("r", tokens, 0) for tokens in (555, 556)] == [False, True]
    assert [costs.pays("r", tokens, 1) for tokens in (263, 264)] == [False, True]


def test_a_host_memory_that_is_slower_than_computing_is_left_alone() -> None:
    """A copied token takes twice what a computed one takes. Beside one running request both cost
    the same, and beside two a load pays from 500 tokens on."""
    costs = measured(copy_s=2 * TOKEN_S)
    assert costs.least(0) == costs.least(1) == math.inf
    assert costs.least(2) == pytest.approx(500)


def test_until_both_were_measured_everything_is_loaded() -> None:
    """Nothing is known of computing, then nothing of loading."""
    costs = ReloadCosts(StepMeter())
    costs.begun("a", 10, 0.0)
    costs.loaded("a", 60.0)
    assert costs.pays("b", 1, 0)
    costs = ReloadCosts(filled(100, 0.001))
    assert costs.pays("b", 1, 0)


def test_a_step_that_was_planned_ahead_begins_when_the_last_one_ends() -> None:
    """Two steps of 100 prompt tokens are planned at once, and take a second each."""
    steps = StepMeter()
    for _ in range(2):
        steps.planned(PlannedWork(100), 0.0)
    steps.computed(1.0)
    steps.computed(2.0)
    costs = ReloadCosts(steps)
    costs.begun("a", 100, 2.0)
    costs.loaded("a", 2.5)
    # A token takes 10 ms to compute, and 5 ms to load.
    assert costs.least(0) == 0.0 and costs.pays("b", 1, 0)


def test_one_load_in_many_is_made_to_measure_anew() -> None:
    """A request that asks again while it waits counts once. With the 32nd of others one is loaded,
    and the count begins anew."""
    costs = measured(copy_s=2 * TOKEN_S)
    assert not any(costs.pays("same", 100, 0) for _ in range(2 * TRIAL))
    asked = [costs.pays(f"r{number}", 100, 0) for number in range(TRIAL)]
    assert asked == [False] * (TRIAL - 1) + [True]


def test_a_load_whose_request_has_ended_is_not_measured() -> None:
    """The client has gone; the same id comes again later."""
    costs = ReloadCosts(filled(100, 0.1))
    costs.begun("a", 100, 0.0)
    costs.ended("a")
    costs.loaded("a", 99.0)
    assert costs.least(0) == 0.0


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.0, 10.0)), min_size=1, max_size=40),
    st.integers(0, 8),
)
def test_more_beside_it_never_make_a_load_less_worth(
    loads: list[tuple[int, float]], running: int
) -> None:
    """Whatever was measured, a longer load and more running requests speak for loading."""
    costs = ReloadCosts(filled(1000, 1.0))
    for tokens, seconds in loads:
        costs.begun("a", tokens, 0.0)
        costs.loaded("a", seconds)
    assert 0.0 <= costs.least(running + 1) <= costs.least(running)
