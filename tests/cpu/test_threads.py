"""A step's threads give way to a neighbour and come back when it has gone."""

from __future__ import annotations

from itertools import pairwise

from weftline_engine.embedded.threads import ThreadGovernor, sleeps

ALL, ONE = 0.016, 0.026  # seconds a step of 8 rows takes on two quiet cores, and on one


def run(governor: ThreadGovernor, seconds: float, *, crowded: float, slept: int) -> list[int]:
    """Steps for so long, where all threads need `crowded` seconds; on how many threads each ran."""
    used = []
    while seconds > 0:
        used.append(governor.threads)
        took = crowded if governor.threads > 1 else ONE
        governor.after(slept if governor.threads > 1 else 0, took, 8)
        seconds -= took
    return used


def test_quiet_steps_use_all_threads() -> None:
    governor = ThreadGovernor(2)
    for slept in (0, 1, 2, 0, 9, 0, 9, 1):
        governor.after(slept, ALL, 8)
        assert governor.threads == 2


def test_a_long_step_may_see_more() -> None:
    """The engine receives verbs while it computes a prompt: 3 sleeps in 0.3 s tell nothing."""
    governor = ThreadGovernor(2)
    for slept in (3, 8, 8, 5):
        governor.after(slept, 0.3, 128)
    assert governor.threads == 2
    governor.after(9, 0.3, 128)
    governor.after(9, 0.3, 128)
    assert governor.threads == 1


def test_a_busy_neighbour_leaves_one_thread() -> None:
    """Two crowded steps lead to a trial, which wins; all threads are tried now and then, a step
    each time, for it is plain at once that they still lose."""
    used = run(ThreadGovernor(2), 10, crowded=0.035, slept=50)
    assert used[:5] == [2, 2, 1, 1, 1]
    later = used[2:]
    assert later.count(2) == 5  # 0.4, 1.2, 2.8, 6 and 9.2 seconds later
    assert not any(a == b == 2 for a, b in pairwise(later))


def test_a_neighbour_that_comes_and_goes_leaves_all_threads() -> None:
    """Threads sleep in each step, but all of them are still faster than one: so say the trials,
    which grow rare."""
    used = run(ThreadGovernor(2), 10, crowded=0.019, slept=9)
    assert used.count(1) == 5  # a step each, after 0, 0.8, 2.4, 5.6 and 8.8 seconds


def test_when_the_neighbour_leaves_all_threads_come_back() -> None:
    governor = ThreadGovernor(2)
    run(governor, 10, crowded=0.035, slept=50)
    assert set(run(governor, 4, crowded=ALL, slept=0)[-10:]) == {2}
    assert (governor.threads, governor.pause) == (2, 0.4)


def test_steps_of_other_sizes_compare_by_their_rows() -> None:
    """A trial on a step of 64 rows among those of 8 does not lose for its size."""
    governor = ThreadGovernor(2)
    for rows, took in ((8, 0.035), (8, 0.035), (64, 0.140), (8, 0.026)):
        governor.after(50, took, rows)
    assert (governor.threads, governor.pause) == (1, 0.4)


def test_one_core_needs_no_judgement() -> None:
    governor = ThreadGovernor(1)
    governor.after(1000, ALL, 8)
    assert governor.threads == 1


def test_sleeps_are_counted() -> None:
    assert sleeps() >= 0
