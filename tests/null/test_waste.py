"""The waste of a paused context, the pauses of tools, and the choice that follows, as tables."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import KvCosts, Retention
from weftline_server.schedule.memory.paused_contexts import LONG_S, PausedContext, PausedContexts
from weftline_server.schedule.memory.pauses import (
    GUESS_WEIGHT,
    LONGEST_S,
    MOST_TOOLS,
    UNKNOWN_PAUSE_S,
    LogNormal,
    Pauses,
)
from weftline_server.schedule.memory.verbs import AdviseContext, RetainContext
from weftline_server.schedule.memory.waste import (
    Load,
    Strategy,
    discard,
    swap,
    waste,
)

# The constants of GPT-J-6B on an A100: 16.92 ms a step, 0.0408 ms a token, 384 tokens a step.
GPTJ = KvCosts(step_s=0.01692, fill_s=0.0000408, chunk=384)
BUSY = Load(running=64, held=24_000)

pauses_s = st.floats(1e-4, 3600.0)
loads = st.builds(Load, running=st.integers(0, 300), held=st.integers(0, 100_000))
some_costs = st.builds(
    KvCosts,
    step_s=st.floats(0, 1),
    fill_s=st.floats(1e-6, 0.01),
    chunk=st.integers(1, 2048),
    copy_s=st.floats(0, 0.01),
    host_tokens=st.integers(0, 100_000),
)


@pytest.mark.parametrize(
    ("tokens", "load", "expected"),
    [
        (128, Load(), 0.6685),
        (512, Load(), 13.1820),
        (512, BUSY, 513.2824),
        (1024, Load(running=32, held=8000), 372.8236),
        (2048, BUSY, 2225.0561),
    ],
)
def test_discarding_costs_what_infercept_says(tokens: int, load: Load, expected: float) -> None:
    """The values that its published code computes with these constants."""
    assert discard(tokens, GPTJ, load) == pytest.approx(expected, abs=5e-5)


def test_preserving_pays_for_short_pauses() -> None:
    """On a busy engine a context of 512 tokens is worth keeping for 1.0025 s."""
    assert discard(512, GPTJ, BUSY) / 512 == pytest.approx(1.0025, abs=5e-5)
    assert waste(512, 1.002, GPTJ, BUSY).best is Strategy.PRESERVE
    assert waste(512, 1.003, GPTJ, BUSY).best is Strategy.DISCARD


def test_swapping_stops_everything_twice() -> None:
    """100 tokens take 0.1 s each way, in which they and 900 others wait: 200 token-seconds."""
    costs = replace(GPTJ, copy_s=0.001, host_tokens=100)
    assert swap(100, costs, Load(held=900)) == pytest.approx(200.0)
    assert waste(100, 1e9, costs, Load()).best is Strategy.DISCARD
    cheap = replace(costs, copy_s=1e-6)
    assert waste(100, 1e9, cheap, BUSY).best is Strategy.SWAP
    assert waste(101, 1e9, cheap, BUSY).swap == math.inf


@given(st.integers(1, 100_000), pauses_s, pauses_s, some_costs, loads)
def test_the_best_strategy_is_the_least_waste(
    tokens: int, pause_s: float, later_s: float, costs: KvCosts, load: Load
) -> None:
    """A longer pause never turns a context that goes into one that stays, and no waste is negative
    or undefined."""
    found = waste(tokens, pause_s, costs, load)
    values = [found.of(one) for one in Strategy]
    assert found.of(found.best) == min(values) >= 0
    if pause_s <= later_s and found.best is not Strategy.PRESERVE:
        assert waste(tokens, later_s, costs, load).best is found.best


@given(st.integers(1, 50_000), st.integers(0, 5000), some_costs, loads)
def test_a_longer_context_never_costs_less(
    tokens: int, more: int, costs: KvCosts, load: Load
) -> None:
    """Of the three equations, and of a fuller engine."""
    assert discard(tokens, costs, load) <= discard(tokens + more, costs, load) * (1 + 1e-9) + 1e-9
    assert swap(tokens, costs, load) <= swap(tokens + more, costs, load)
    fuller = replace(load, held=load.held + more)
    assert discard(tokens, costs, load) <= discard(tokens, costs, fuller)


def test_a_tool_is_learned_from_a_first_guess() -> None:
    """The guess is a mean and weighs like two calls. Twenty calls outweigh it."""
    assert LogNormal().expect(8.0) == pytest.approx(8.0)
    one = LogNormal()
    one.learn(2.0)
    median = (math.log(2.0) + GUESS_WEIGHT * (math.log(8.0) - 0.5)) / 3
    assert one.expect(8.0) == pytest.approx(math.exp(median + (2 / 3) / 2))
    for _ in range(200):
        one.learn(2.0)
    assert one.expect(8.0) == pytest.approx(2.0, rel=0.03)


@given(st.lists(pauses_s, min_size=1, max_size=60), pauses_s)
def test_an_expectation_is_finite_and_near_what_was_seen(seen: list[float], guess_s: float) -> None:
    """It never leaves the bounds, and the order of the observations does not matter."""
    forward, backward = LogNormal(), LogNormal()
    for value in seen:
        forward.learn(value)
    for value in reversed(seen):
        backward.learn(value)
    expected = forward.expect(guess_s)
    assert 0 < expected <= LONGEST_S
    assert expected == pytest.approx(backward.expect(guess_s), rel=1e-6)
    assert forward.mean == pytest.approx(sum(map(math.log, seen)) / len(seen), abs=1e-6)


def test_of_several_tools_the_longest_counts() -> None:
    """It alone gets the observation. Tenants do not teach each other."""
    pauses = Pauses()
    for _ in range(50):
        pauses.learn("a", ("clock",), 0.01)
        pauses.learn("a", ("clock", "crawl"), 20.0)
    assert pauses.expect("a", ("clock",)) == pytest.approx(0.01, rel=0.3)
    assert pauses.expect("a", ("clock", "crawl")) == pytest.approx(20.0, rel=0.3)
    assert pauses.expect("b", ("crawl",)) == pytest.approx(UNKNOWN_PAUSE_S)
    assert pauses.expect("a", ()) is None
    for number in range(MOST_TOOLS + 9):
        pauses.learn("c", (f"tool{number}",), 1.0)
    assert len(pauses._tools) == MOST_TOOLS


def make_paused(context: str, tokens: int, pause_s: float) -> PausedContext:
    return PausedContext("e", context, tokens, "t", ("look",), pause_s, since=10.0, load=BUSY)


def test_a_context_goes_only_where_others_wait_and_by_its_waste() -> None:
    """Without pressure it stays, whatever the pause. Under pressure a short pause keeps it, a long
    one discards it, and a cheap copy takes it to the host, as long as there is room for it."""
    paused = PausedContexts()
    paused.engines.add("e", 1000, GPTJ)
    stays = RetainContext("e", "c", Retention.EVICTABLE)
    assert paused.begin(make_paused("c", 512, 60.0), False) == [
        AdviseContext("e", "c", 60.0, None),
        stays,
    ]
    assert paused.begin(make_paused("c", 512, 0.5), True) == [
        AdviseContext("e", "c", 0.5, None),
        stays,
    ]
    assert paused.begin(make_paused("c", 512, 60.0), True) == [
        AdviseContext("e", "c", LONG_S, None),
        stays,
    ]
    paused.engines.add("e", 1000, replace(GPTJ, copy_s=1e-6, host_tokens=800))
    swapped = [AdviseContext("e", "c", 60.0, None), RetainContext("e", "c", Retention.SWAP)]
    assert paused.begin(make_paused("c", 512, 60.0), True) == swapped
    second = paused.begin(make_paused("d", 512, 60.0), True)
    assert second[1:] == [
        RetainContext("e", "d", Retention.SWAP),
        RetainContext("e", "c", Retention.DROP),
    ]


def test_each_pause_is_logged_and_learned(caplog: pytest.LogCaptureFixture) -> None:
    """The true waste stands beside the predicted one. A pause is counted once."""
    paused = PausedContexts()
    paused.engines.add("e", 1000, GPTJ)
    paused.begin(make_paused("c", 512, 0.5), True)
    with caplog.at_level(logging.INFO, "weftline.memory"):
        paused.resumed("c", 14.0, 540)
        paused.resumed("c", 99.0, 540)
    assert [record.getMessage() for record in caplog.records] == [
        "pause of 4.000 s (predicted 0.500 s), 512 tokens: preserve for 2048.0 token-seconds "
        "(predicted 256.0), best was discard for 513.3"
    ]
    known = LogNormal()
    known.learn(4.0)
    expected = paused.expect("t", ("look",))
    # The tool's guess is the tenant's tools together, which have seen the same pause.
    assert expected == pytest.approx(known.expect(known.expect(UNKNOWN_PAUSE_S)))
    assert PausedContexts(learns=False).expect("t", ("look",)) is None
