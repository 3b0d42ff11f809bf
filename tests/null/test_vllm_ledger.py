"""The order that our scheduler gives to vLLM's requests, and which of them wait beside readers."""

from __future__ import annotations

import pytest

from weftline_engine.api import GROUP_WEIGHT, PATIENCE_S, Hints
from weftline_engine.remote.vllm.call_ledger import MOST_EARLY, CallLedger
from weftline_engine.remote.vllm.versions import is_known, refusal


def ledger(**hints: Hints) -> CallLedger:
    """Requests of ten tokens each, which came together in this order."""
    found = CallLedger()
    for name, one in hints.items():
        found.hint(name, one)
        found.add(f"{name}'s request", name, range(10), 0, now=100.0)
    return found


def names(order: list[str] | None) -> list[str] | None:
    return None if order is None else [one.removesuffix("'s request") for one in order]


def test_the_application_with_the_earliest_turn_goes_first() -> None:
    """All its calls go together, the deepest first. The order is told once."""
    found = ledger(
        large=Hints(application="a", turn=200.0),
        last=Hints(application="b", turn=101.0),
        deep=Hints(application="b", turn=101.0, depth=3),
    )
    assert names(found.order()) == ["deep", "last", "large"]
    assert found.order() is None


def test_hints_may_come_before_and_after_the_request() -> None:
    """A hint that changes nothing gives no new order."""
    found = ledger(one=Hints(application="a", turn=101.0), two=Hints(application="b", turn=99.0))
    assert names(found.order()) == ["two", "one"]
    found.hint("two", Hints(application="b", turn=200.0))
    assert names(found.order()) == ["one", "two"]
    found.hint("two", Hints(application="b", turn=200.0))
    assert found.order() is None


def test_requests_of_others_keep_their_priority() -> None:
    """They did not come from weftline. A huge number is worth no more than 80 s of waiting."""
    found = CallLedger()
    for name, priority, now in (("low", 3, 0.0), ("high", -3, 0.0), ("huge", 10**9, 0.0)):
        found.add(name, None, range(10), priority, now)
    found.add("later", None, range(10), 0, now=90.0)
    assert found.order() == ["high", "low", "huge", "later"]


def test_what_has_ended_is_forgotten() -> None:
    """So are hints whose request never came, the oldest first."""
    found = ledger(one=Hints(), two=Hints(turn=101.0))
    found.end("one's request")
    assert names(found.order()) == ["two"] and len(found) == 1
    for i in range(MOST_EARLY + 1):
        found.hint(f"op{i}", Hints(turn=200.0))
    found.add("r", "op0", range(10), 0, now=100.0)  # forgotten: its turn is now
    found.add("s", "op1", range(10), 0, now=100.0)
    assert names(found.order()) == ["r", "two", "s"]


def test_a_call_for_throughput_waits_beside_a_reader() -> None:
    """The reader allows 15 tokens beside its call, so one of the two bulk calls joins it. After
    PATIENCE_S the other one does too."""
    found = ledger(
        reader=Hints(application="a", token_bound=15),
        bulk=Hints(application="b", criterion="throughput"),
        more=Hints(application="c", criterion="throughput", turn=101.0),
    )
    waiting = ["bulk's request", "more's request"]
    assert found.held(["reader's request"], waiting, now=100.0) == {"more's request"}
    assert found.held(["reader's request"], waiting, now=101.0 + PATIENCE_S) == set()
    assert GROUP_WEIGHT * 10 >= 20  # the two have fewer tokens than this
    assert found.held([], waiting, now=100.0) == set()


def test_without_a_reader_nothing_waits() -> None:
    """Without a latency call with a token bound, every request may join the step."""
    found = ledger(one=Hints(criterion="throughput"), two=Hints())
    assert found.held(["one's request"], ["two's request"], now=100.0) == set()


@pytest.mark.parametrize(("version", "said"), [("0.99.1", "vLLM 0.99.1"), ("", "vLLM (unknown)")])
def test_the_refusal_says_what_to_do(version: str, said: str) -> None:
    """It names the version and the option that leaves vLLM its own scheduler."""
    assert said in refusal(version) and "--vllm-scheduler vllm" in refusal(version)


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.32.0", True), ("0.31", True), ("0.30.0", False), ("0.320", False), ("", False)],
)
def test_only_tried_versions_are_known(version: str, known: bool) -> None:
    """A version whose number merely begins like a known one is not known."""
    assert is_known(version) is known
