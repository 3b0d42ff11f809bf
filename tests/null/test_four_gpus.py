"""Parrot's Figures 17 and 19 on four simulated GPUs, under the policy that servers run."""

from __future__ import annotations

import pytest

from tests.simulator.four_gpus import MIXES, SUMMARIES, WAYS, gpts, mixed


def test_users_of_four_applications_share_their_prompts() -> None:
    """Figure 17. A call goes to the GPU that has its application's prompt. Engines in turn compute
    each prompt on each GPU. Where nothing is shared, prompts leave a limit between two tokens of
    the answers beside them.
    """
    names = ("weftline", "engines in turn", "nothing shared")
    ours, in_turn, alone = (gpts(WAYS[name], rate=4.0, users=40) for name in names)
    assert (ours, in_turn, alone) == pytest.approx((39, 42, 53), rel=0.05)


@pytest.mark.parametrize(
    ("name", "chat_ms", "slow_ms", "summary_s", "leave_one"),
    [
        ("weftline", 28.5, 51.7, 8.29, SUMMARIES),
        ("weftline, summaries for throughput", 25.1, 31.4, 9.48, 7),
        ("requests", 29.4, 54.9, 7.68, 0),
    ],
)
def test_chats_keep_apart_from_summaries(
    name: str, chat_ms: float, slow_ms: float, summary_s: float, leave_one: int
) -> None:
    """Figure 19. A summary leaves a GPU to the chats. In the order of requests it takes all. Where
    summaries are for throughput, chats gain more.
    """
    found = mixed(MIXES[name])
    assert found.chat_ms == pytest.approx(chat_ms, rel=0.05)
    assert found.slow_ms == pytest.approx(slow_ms, rel=0.05)
    assert found.summary_s == pytest.approx(summary_s, rel=0.05)
    assert found.leave_one == leave_one
