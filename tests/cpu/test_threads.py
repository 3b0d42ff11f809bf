"""A step's threads give way to a neighbour and come back when it has gone."""

from __future__ import annotations

from weftline_engine.embedded.threads import ThreadGovernor, sleeps


def test_quiet_steps_use_all_threads() -> None:
    governor = ThreadGovernor(2)
    for slept in (0, 1, 2, 0, 9, 0, 9, 1):
        governor.after(slept)
        assert governor.threads == 2


def test_two_crowded_steps_end_in_one_thread_for_a_while() -> None:
    """16 steps later all threads are tried; crowded still, so the next pause is twice as long."""
    governor = ThreadGovernor(4)
    governor.after(50)
    governor.after(50)
    for _ in range(16):
        assert governor.threads == 1
        governor.after(0)
    assert governor.threads == 4
    governor.after(50)
    for _ in range(32):
        assert governor.threads == 1
        governor.after(0)
    assert governor.threads == 4


def test_a_neighbour_that_left_is_forgotten() -> None:
    """After 16 quiet steps on all threads, one crowded step is chance again."""
    governor = ThreadGovernor(2)
    for slept in (9, 9, *[0] * 16, *[0] * 16):
        governor.after(slept)
    governor.after(9)
    assert (governor.threads, governor.pause) == (2, 16)


def test_pauses_are_bounded() -> None:
    governor = ThreadGovernor(2)
    for _ in range(5000):
        governor.after(99)
    assert governor.pause == 512


def test_one_core_needs_no_judgement() -> None:
    governor = ThreadGovernor(1)
    governor.after(1000)
    assert governor.threads == 1


def test_sleeps_are_counted() -> None:
    assert sleeps() >= 0
