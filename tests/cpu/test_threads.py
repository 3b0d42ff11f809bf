"""A step's threads give way to a neighbour and come back when it has gone."""

from __future__ import annotations

from weftline_engine.embedded.threads import ThreadGovernor, sleeps

STEP = 0.025  # seconds


def test_quiet_steps_use_all_threads() -> None:
    governor = ThreadGovernor(2)
    for slept in (0, 1, 2, 0, 9, 0, 9, 1):
        governor.after(slept, STEP)
        assert governor.threads == 2


def test_a_long_step_may_see_more() -> None:
    """The engine receives verbs while it computes a prompt: 3 sleeps in 0.3 s tell nothing."""
    governor = ThreadGovernor(2)
    for slept in (3, 8, 8, 5):
        governor.after(slept, 0.3)
    assert governor.threads == 2
    governor.after(9, 0.3)
    governor.after(9, 0.3)
    assert governor.threads == 1


def test_two_crowded_steps_end_in_one_thread_for_a_while() -> None:
    """0.4 s later all threads are tried; crowded still, so the next pause is twice as long."""
    governor = ThreadGovernor(4)
    governor.after(50, STEP)
    governor.after(50, STEP)
    for _ in range(16):
        assert governor.threads == 1
        governor.after(0, STEP)
    assert governor.threads == 4
    governor.after(50, STEP)
    for _ in range(32):
        assert governor.threads == 1
        governor.after(0, STEP)
    assert governor.threads == 4


def test_a_pause_is_time_and_not_steps() -> None:
    """Steps of half a second do not stay on one thread for sixteen of them."""
    governor = ThreadGovernor(2)
    for slept in (50, 50, 0):
        governor.after(slept, 0.5)
    assert governor.threads == 2


def test_a_neighbour_that_left_is_forgotten() -> None:
    """After 0.4 quiet seconds on all threads, one crowded step is chance again."""
    governor = ThreadGovernor(2)
    for slept in (9, 9, *[0] * 16, *[0] * 17):
        governor.after(slept, STEP)
    governor.after(9, STEP)
    assert (governor.threads, governor.pause) == (2, 0.4)


def test_pauses_are_bounded() -> None:
    governor = ThreadGovernor(2)
    for _ in range(5000):
        governor.after(99, STEP)
    assert governor.pause == 12.8


def test_one_core_needs_no_judgement() -> None:
    governor = ThreadGovernor(1)
    governor.after(1000, STEP)
    assert governor.threads == 1


def test_sleeps_are_counted() -> None:
    assert sleeps() >= 0
