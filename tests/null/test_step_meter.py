"""The costs of vLLM's steps, from the seconds of those that it has computed."""

from __future__ import annotations

import random

import pytest

from weftline_engine.bookkeeping.schedule.step_seconds import StepSeconds, attended_by
from weftline_engine.remote.vllm.step_meter import PlannedWork, StepMeter, line

TRUE = StepSeconds(step_s=0.007, fill_s=20e-6, token_s=48e-9, attend_s=1e-9)


def measured(noise: float = 0.0, delayed: int = 0) -> StepSeconds | None:
    """The costs after a prompt of 60,000 tokens in chunks of 2,000, and 30 tokens of answers beside
    ever more others. Of all steps so many take a second more."""
    meter, now, chance = StepMeter(), 0.0, random.Random(1)
    works = [
        PlannedWork(2000, attended_by(2000, at), 0, at + 2000) for at in range(0, 60_000, 2000)
    ]
    answers = [PlannedWork(0, 0, 1, 10_000 * at) for at in range(30)]
    works = [one for pair in zip(answers, works, strict=True) for one in pair]
    late = set(chance.sample(range(len(works)), delayed))
    for number, work in enumerate(works):
        meter.planned(work, now)
        seconds = TRUE.seconds(work.prompt, work.decoding, work.held, work.attended)
        now += seconds * (1 + noise * chance.uniform(-1, 1)) + (number in late)
        meter.computed(now)
    return meter.cost


@pytest.mark.parametrize(
    ("noise", "delayed", "off"), [(0.0, 0, 1e-6), (0.0, 6, 1e-6), (0.1, 6, 0.15)]
)
def test_the_costs_of_steps_are_found(noise: float, delayed: int, off: float) -> None:
    """Also where some steps were delayed, and where all of them vary. What counts is the time of a
    chunk behind 90,000 tokens."""
    found = measured(noise, delayed)
    assert found is not None
    for at in (0, 90_000):
        assert found.added(500, at) == pytest.approx(TRUE.added(500, at), rel=off)
    assert found.seconds(0, 4, 320_000) == pytest.approx(TRUE.seconds(0, 4, 320_000), rel=off)


def test_nothing_is_known_until_both_kinds_of_steps_were_computed() -> None:
    """A prompt's step, and one with too few tokens of one, are no costs of decoding."""
    meter = StepMeter()
    for work in (PlannedWork(1000), PlannedWork(10, decoding=1)):
        meter.planned(work, 0.0)
        meter.computed(1.0)
    assert meter.cost is None and meter.fill_s == 0.001
    meter.planned(PlannedWork(decoding=1, held=100), 1.0)
    meter.computed(1.5)
    assert meter.cost == StepSeconds(step_s=0.5, fill_s=0.001)


def test_a_line_is_never_below_zero() -> None:
    """A slope that falls is none. A constant below zero is none, and the line goes through it."""
    assert line([(1.0, 4.0), (2.0, 3.0), (3.0, 2.0)]) == (3.0, 0.0)
    assert line([(1.0, 0.0), (2.0, 4.0), (4.0, 12.0)]) == (0.0, 2.0)
