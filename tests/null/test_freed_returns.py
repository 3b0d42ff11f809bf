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
    ("kind", "likely"), [(Return.NEVER, False), (Return.SELDOM, False), (Return.OFTEN, True)]
)
def test_what_is_likely_before_anything_is_known(kind: Return, likely: bool) -> None:
    assert freed(FreedReturns(), "a", kind) is likely


def test_conversations_that_go_on_are_believed_to_go_on() -> None:
    """The second turn begins with the block of the first. Two of four kinds of evidence are worth
    as much as what was usual: (1 + 2) of (4 + 2)."""
    returns = FreedReturns()
    assert not freed(returns, "a")
    assert not freed(returns, "b")
    returns.come(["a", "a2"])
    assert not freed(returns, "c")  # (1 + 1) of (4 + 1)
    returns.come(["b", "b2"])
    assert freed(returns, "d")
    assert freed(returns, "e", Return.OFTEN)  # agents are counted by themselves


def test_agents_that_do_not_go_on_are_believed_to_end() -> None:
    """Those that were freed longest ago have gone."""
    returns = FreedReturns()
    likely = [freed(returns, f"a{at}", Return.OFTEN) for at in range(MOST_FREED + 9)]
    # (3 of 4) and two that have gone are a half.
    assert all(likely[: MOST_FREED + 2]) and not any(likely[MOST_FREED + 3 :])
    returns.come(["a0"])  # one that has gone
    assert not freed(returns, "b", Return.OFTEN)


def test_a_session_s_turn_that_is_continued_says_nothing_of_freed_ones() -> None:
    """The next turn comes before the context of the last one is freed."""
    returns = FreedReturns()
    for turn in range(2 * USUAL_COUNT):
        returns.come(map(str, range(turn + 1)))
        returns.leave(f"turn {turn}", str(turn), Return.SELDOM)
        assert not turn or not returns.free(f"turn {turn - 1}")
    assert not freed(returns, "a")
    assert not returns.free("unknown")


def test_old_contexts_are_forgotten() -> None:
    returns = FreedReturns()
    for at in range(MOST_LEFT + 1):
        returns.leave(f"c{at}", at, Return.OFTEN)
    assert not returns.free("c0") and returns.free("c1")
