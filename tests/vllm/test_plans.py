"""What our scheduler plans in vLLM's own classes, without a model: the stories of plans.py."""

from __future__ import annotations

from typing import Any

import pytest

OWN = 40  # tokens of each sibling's own; 200 or 400 stand before them, in blocks of 16
LEFT = 200 % 16  # behind the last whole block of those
WHOLE, PART = 200 + OWN, LEFT + OWN
COMPUTED = {  # prompt tokens
    "with": {"s": WHOLE, "ss": PART, "sss": PART},
    "without": {"s": WHOLE, "ss": WHOLE, "sss": PART},
    "levels": {"deep 1": 400 + OWN, "deep 2": OWN, "beside": PART},
    "next turn": [16 + OWN, 16 + OWN],
}
pytestmark = pytest.mark.timeout(300)


def test_the_pool_evicts_the_dead_first(plans: dict[str, Any]) -> None:
    """Our contexts on vLLM's own block pool: each of the stories asserts what it says."""
    assert len(plans["pool"]) == 5


def test_the_next_step_is_planned_before_the_last_ones_tokens(plans: dict[str, Any]) -> None:
    """Each request decodes in the step behind its prompt, whose token is not there yet.

    A scheduler that waits for the token plans an empty step instead, and takes twice as many. The
    order is that of the priorities. The empty steps come where the answers are complete and their
    tokens are not there: vLLM finds out only then that places are free.
    """
    found = plans["asynchronous"]
    assert found["class"] == "AsyncWeftlineScheduler"
    urgent, rest = ("fourth", "first"), ("second", "third")
    assert found["steps"] == [
        dict.fromkeys(urgent, 20),
        dict.fromkeys(urgent, 1),
        dict.fromkeys(urgent, 1),
        {},
        dict.fromkeys(rest, 20),
        dict.fromkeys(rest, 1),
        dict.fromkeys(rest, 1),
        {},
    ]


def test_states_are_kept_where_prompts_go_on(plans: dict[str, Any]) -> None:
    """In our plan a prompt finds the states that it goes on with.

    The first of three siblings keeps the state at the last whole block that they have in common,
    and both others find it. vLLM alone keeps it there with the second, which computes all. A prompt
    with two borders keeps a state at each. The next turn of a conversation finds its state in a
    full pool, if its context is kept or ended last: vLLM evicted the state while it had all else.
    The prompt before it ends with a block: vLLM 0.31 alone keeps no state of such a prompt.
    """
    assert plans["states"] == COMPUTED


def test_windows_are_kept_where_prompts_go_on(plans: dict[str, Any]) -> None:
    """The same with sliding windows, of which vLLM keeps as little. A turn that is freed leaves the
    window where agents part. In the last story all contexts are kept. The next prompt needs blocks
    for each group of layers, and runs: so many give way."""
    found = dict(plans["windows"])
    assert (found.pop("agents"), found.pop("kept")) == (PART, [512, 1])
    assert found == COMPUTED
