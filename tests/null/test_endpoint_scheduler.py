"""What the scheduler behind an openai engine's endpoint is told about each call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.endpoints import streams
from tests.null.test_openai_faults import chat, ending, started
from weftline_engine.api import Finished, Hints
from weftline_engine.remote.openai.scheduling import EndpointScheduler, fields

HINTS = Hints(application="s-1", turn=27.0, arrival=7.0)


@pytest.mark.parametrize(
    ("scheduler", "said", "named"),
    [
        ("none", {}, {}),
        ("vllm", {"priority": 270}, {"x-session-id": "s-1"}),
        ("sglang", {"priority": -270}, {"x-session-id": "s-1"}),
        (
            "dynamo",
            {"nvext": {"agent_hints": {"priority": 80}}},
            {"x-dynamo-session-id": "s-1"},
        ),
    ],
)
async def test_each_scheduler_is_told_in_its_own_fields(
    tmp_path: Path, scheduler: str, said: dict[str, Any], named: dict[str, str]
) -> None:
    """By default the request has nothing that OpenAI does not document."""
    behaviour = streams("a")
    async with started(tmp_path, behaviour, endpoint_scheduler=EndpointScheduler(scheduler)) as (
        engine,
        endpoint,
    ):
        _, end = await ending(engine, replace(chat(), hints=HINTS))
        assert isinstance(end, Finished)
        (body,) = endpoint.requests
        assert {name: body[name] for name in ("priority", "nvext") if name in body} == said
        sent = endpoint.headers[-1]
        assert {name: sent[name] for name in sent if name.endswith("session-id")} == named


async def test_a_name_that_no_header_can_hold_is_left_out(tmp_path: Path) -> None:
    """A line break in it would otherwise be a header of the client's choice."""
    hints = replace(HINTS, application="s\r\nX-Admin: 1")
    async with started(tmp_path, streams("a"), endpoint_scheduler=EndpointScheduler.VLLM) as (
        engine,
        endpoint,
    ):
        _, end = await ending(engine, replace(chat(), hints=hints))
        assert isinstance(end, Finished)
        assert not {"x-session-id", "x-admin"} & endpoint.headers[-1].keys()


def _place(scheduler: EndpointScheduler, hints: Hints) -> int:
    found = fields(scheduler, replace(chat(), hints=hints))["priority"]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(
    ("more", "tools", "told"),
    [
        ({}, False, {}),
        ({}, True, {"speculative_prefill": True}),
        ({"expected_output": 48}, False, {"osl": 48}),
    ],
)
def test_dynamo_is_told_what_follows(
    more: dict[str, Any], tools: bool, told: dict[str, Any]
) -> None:
    """The likely length of the output, and that the next prompt continues a turn with tools."""
    op = replace(chat(), hints=replace(HINTS, **more))
    assert op.chat is not None
    op = replace(op, chat=replace(op.chat, tools=({"type": "function"},) if tools else ()))
    found = fields(EndpointScheduler.DYNAMO, op)["nvext"]["agent_hints"]
    assert found == {"priority": 80, **told}
    assert fields(EndpointScheduler.VLLM, op) == {"priority": 270}


SOME = st.builds(
    Hints,
    turn=st.floats(-1000.0, 10**7),
    arrival=st.floats(0, 10**7),
)


@given(SOME, SOME)
def test_both_numbers_have_the_order_of_the_servers_queue(one: Hints, other: Hints) -> None:
    """Who goes first in the server goes first at vLLM and SGLang; rounding may make a tie."""
    first, last = sorted((one, other), key=lambda hints: hints.turn)
    low, high = (_place(EndpointScheduler.VLLM, hints) for hints in (first, last))
    assert low <= high
    low, high = (_place(EndpointScheduler.SGLANG, hints) for hints in (last, first))
    assert low <= high
