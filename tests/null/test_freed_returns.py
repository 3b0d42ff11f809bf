"""Which freed contexts are believed to return, by what earlier ones did."""

from __future__ import annotations

import pytest

from weftline_engine.api import Return
from weftline_engine.remote.return_count import USUAL_COUNT
from weftline_engine.remote.vllm.freed_returns import MOST_FREED, MOST_LEFT, FreedReturns


def freed(returns: FreedReturns, name: str, kind: Return = Return.SELDOM) -> bool:
    """A prompt of one block comes, and its context is freed. Whether it is likely to return."""
    returns.come([name])
    returns.leave(name, name, kind)
    return returns.free(name)


@pytest.mark.parametrize(
    ("kind", "likely"), [(Return.NEVER, False), (Return.SELDOM, True), (Return.OFTEN, True)]
)
def test_what_is_likely_before_anything_is_known(kind: Return, likely: bool) -> None:
    assert freed(FreedReturns(), "a", kind) is likely


def test_calls_that_do_not_go_on_are_believed_to_end_until_some_do() -> None:
    """Those that were freed longest ago have gone. With one of them the share is 1 of 4 + 1. With
    one that returns and two or four that have gone it is 2 of 7 and 2 of 9."""
    returns = FreedReturns()
    likely = [freed(returns, f"a{at}") for at in range(MOST_FREED + 2)]
    assert likely == [True] * MOST_FREED + [False] * 2
    returns.come(["a9", "more"])
    assert freed(returns, "b")
    returns.come(["a0"])  # it has gone
    assert freed(returns, "c") and not freed(returns, "d")
    assert freed(returns, "e", Return.OFTEN)  # agents are counted by themselves


def test_a_session_s_turn_that_is_continued_says_nothing_of_freed_ones() -> None:
    """The next turn comes before the context of the last one is freed."""
    returns = FreedReturns()
    for turn in range(2 * USUAL_COUNT):
        returns.come(map(str, range(turn + 1)))
        returns.leave(f"turn {turn}", str(turn), Return.SELDOM)
        assert not turn or not returns.free(f"turn {turn - 1}")
    assert freed(returns, "a") and not returns.free("unknown")
    assert returns._counts[Return.SELDOM].returned == 0


def test_old_contexts_are_forgotten() -> None:
    returns = FreedReturns()
    for at in range(MOST_LEFT + 1):
        returns.leave(f"c{at}", at, Return.OFTEN)
    assert not returns.free("c0") and returns.free("c1")
