"""What a prompt token costs an engine that computes several prompts in one step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.null.test_memory import make_usage
from weftline_engine.api import Usage
from weftline_server.schedule.memory.constants import FEWEST_TIMED, MOST_ENGINES, PROMPTS_KEPT
from weftline_server.schedule.memory.fill_cost import FillCost


def prompt(started: float, filled: float, tokens: int = 100, cached: int = 0) -> Usage:
    """The usage of a prompt that was computed between two times."""
    made = replace(make_usage(tokens + cached), started=started, filled=filled)
    return replace(made, cached_tokens=cached)


def test_prompts_that_are_computed_together_share_their_time() -> None:
    """Five prompts of 100 tokens take 5 s together. One after the other they take as much."""
    for each in ([(0.0, 5.0)] * 5, [(float(at), at + 1.0) for at in range(5)]):
        cost = FillCost()
        assert cost.seconds is None
        for started, filled in each:
            cost.add("e", prompt(started, filled))
        assert cost.seconds == 0.01


def test_the_time_of_each_engine_counts() -> None:
    """Two engines that compute 100 tokens each in the same second have used two seconds. Those that
    computed a prompt last are remembered."""
    cost = FillCost()
    cost.add("a", prompt(0.0, 1.0))
    cost.add("b", prompt(0.0, 3.0))
    assert cost.seconds == 0.02
    for number in range(MOST_ENGINES - 1):
        cost.add("a", prompt(1.0 + number, 2.0 + number))
        cost.add(f"e{number}", prompt(0.0, 1.0))
    assert cost.seconds == pytest.approx(0.01), "b is forgotten"


def test_what_was_cached_costs_nothing_and_short_prompts_say_little() -> None:
    """100 computed tokens behind 900 of the cache count as 100. A prompt below FEWEST_TIMED tokens
    tells the time of a step."""
    cost = FillCost()
    cost.add("e", prompt(0.0, 9.0, FEWEST_TIMED - 1, 900))
    assert cost.seconds is None
    cost.add("e", prompt(0.0, 1.0, 100, 900))
    assert cost.seconds == 0.01


def test_old_prompts_are_forgotten() -> None:
    """The newest ones tell how the engine fares now."""
    cost = FillCost()
    cost.add("e", prompt(0.0, 100.0))
    for at in range(PROMPTS_KEPT):
        cost.add("e", prompt(200.0 + at, 201.0 + at))
    assert cost.seconds == 0.01


TIMES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=PROMPTS_KEPT
)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(TIMES)
def test_the_time_is_that_in_which_any_prompt_was_computed(
    times: list[tuple[int, int]],
) -> None:
    """The seconds are counted one by one here. The order in which prompts are told is another than
    that in which they were computed."""
    cost = FillCost()
    for started, lasted in times:
        cost.add("e", prompt(float(started), float(started + lasted)))
    covered = {second for start, lasted in times for second in range(start, start + lasted)}
    assert cost.seconds == pytest.approx(len(covered) / (100 * len(times)))
