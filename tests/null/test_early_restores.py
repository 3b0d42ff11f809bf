"""Contexts come back from host memory before their tools end, where calls that run leave room."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.simulator.world import World, asking, chatting, usage_of, world
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.simulation import asking as asks
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.schedule.memory.early_restores import EarlyRestores, Swapped

# A copy of the agent's 620 tokens takes 0.18 s. Nothing is known of its tool, so that the tool is
# expected to take 5 s.
CONFIG = SimulatedConfig(
    cost=StepCost(step_s=0.01, fill_s=0.002, copy_s=0.0003),
    kv_tokens=1_600,
    host_tokens=4_000,
    tools=("walk",),
)
TOOL_S = 10.0


def said(start: int, count: int) -> str:
    return "".join(f"w{number % 2048} " for number in range(start, start + count))


async def others(made: World, calls: int) -> None:
    """Calls of 1,200 tokens, one after the other, of 4 s each. The agent's context has no room
    beside them."""
    for number in range(calls):
        session = made.driver.open("others")
        text = said(1000 + number, 1200)
        await made.ask(session, asking(text, "o", 150, ignore_eos=True))
        made.driver.close(session)


def agent_beside(calls: int, config: SimulatedConfig = CONFIG) -> tuple[int, float]:
    """Other calls run while an agent's tool does. The tokens of the agent's context in the KV cache
    shortly before its tool ends, and the seconds from that end to the next answer's first token."""

    async def main(loop: VirtualLoop) -> tuple[int, float]:
        async with world(loop, config) as made:
            session = made.driver.open("agent")
            text = f"{said(0, 600)}{asks('walk')} "
            answer = await made.ask(session, chatting(text, "first", "walk", 4))
            [context] = made.engines[0].book.contexts.named.values()
            running = asyncio.create_task(others(made, calls))
            await asyncio.sleep(TOOL_S - 0.1)
            held = len(context.held) * CONFIG.block_size
            await asyncio.sleep(0.1)
            ended = made.now
            await made.ask(session, chatting(f"{text}{answer}{said(700, 10)}", "next", "walk", 4))
            await running
            return held, usage_of(session, "next").filled - ended

    return run(main)


def test_a_copy_begins_before_its_tool_ends() -> None:
    """It takes 0.5 s, and begins a second before second 10. Without room it is looked at again."""
    early = EarlyRestores()
    early.add("c", Swapped("e", 600, 0.5, 10.0))
    assert early.next_at == 9.0
    assert early.due(8.9, {"e": 600}) == []
    assert early.due(9.0, {"e": 599}) == []
    assert early.next_at == 9.5
    assert early.due(9.5, {"e": 600}) == [("e", "c")]
    assert early.next_at is None


def test_what_came_back_fills_its_room_until_its_call_goes_on() -> None:
    early = EarlyRestores()
    early.add("a", Swapped("e", 600, 0.5, 10.0))
    early.add("b", Swapped("e", 600, 0.5, 11.0))
    assert early.due(10.0, {"e": 1000}) == [("e", "a")]
    early.forget("a")
    assert early.due(10.5, {"e": 1000}) == [("e", "b")]


@pytest.mark.parametrize("gone", ["forgotten", "copied again"])
def test_a_context_that_has_gone_on_does_not_come_back(gone: str) -> None:
    early = EarlyRestores()
    early.add("c", Swapped("e", 600, 0.5, 10.0))
    if gone == "forgotten":
        early.forget("c")
        assert early.next_at is None
    else:
        early.add("c", Swapped("e", 600, 0.5, 20.0))
        assert early.due(19.0, {"e": 600}) == [("e", "c")]
        assert early.due(30.0, {"e": 600}) == []


def test_a_context_is_back_when_its_tool_ends() -> None:
    """Another call took its room for 4 s. It is back before the tool ends, and the next answer
    waits for no copy."""
    held, first_s = agent_beside(1)
    assert held > 600
    assert first_s == pytest.approx(0.032)


def test_a_context_does_not_come_back_where_calls_that_run_need_the_room() -> None:
    """Other calls run until second 16. The context stays in host memory, and comes with its
    call."""
    held, first_s = agent_beside(4)
    assert held == 0
    assert first_s > 0.2


def test_a_short_copy_is_left_to_its_call() -> None:
    """A copy of 620 tokens takes 3.7 steps, and the next answer waits for it."""
    cost = replace(CONFIG.cost, copy_s=0.00006)
    held, first_s = agent_beside(1, replace(CONFIG, cost=cost))
    assert held == 0
    assert 0.032 < first_s < 0.1
