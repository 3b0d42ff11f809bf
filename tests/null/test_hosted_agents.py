"""Agents whose tools the server runs pause until the prompt of the next turn is complete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.null.test_memory import World, make_op, make_usage
from tests.simulator.hosted_agents import TOOLS, HostedAgents, simulate
from weftline_engine.api import KvCosts, Op, Retention
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.verbs import RetainContext

PAUSED_AT = 1.0


@pytest.mark.parametrize(
    ("more", "most_s", "early"),
    [({}, 33.0, False), ({"host_tokens": 20_000}, 30.5, False), ({"share": 1.1}, 22.3, True)],
    ids=["a third of the cache", "with a host tier", "room for all"],
)
def test_a_context_leaves_during_a_long_tool(
    more: dict[str, Any], most_s: float, early: bool
) -> None:
    """24 agents, half with a tool of 6 s. When the early fill of the next turn ended the pause,
    tools were learned as 0.1 ms, and the three took 34.5, 33.9 and 22.1 s in the mean. With room,
    each turn after a short tool is filled early."""
    found = simulate(HostedAgents(applications=48, **more))
    assert found.expects_s == {name: pytest.approx(TOOLS[name], rel=0.1) for name in TOOLS}
    assert found.mean_s < most_s
    assert (found.early >= 24 * 4) is early


def test_an_agent_of_a_single_submit_pauses_as_well() -> None:
    """Its session ends with it, but the agent comes back to its context for each turn."""
    found = simulate(HostedAgents(agents=2, applications=8, share=3.0, stays=False))
    assert found.expects_s["clock"] < 0.1 < 4.0 < found.expects_s["walk"] < 8.0


def paused(*, host: bool = False, waits: bool = False) -> tuple[World, Op]:
    """A call of 100 tokens that has paused for `look` at 1 s on a cache of 1,000; `waits` says that
    another application waits for room. Also the open op of the next turn."""
    world = World()
    world.tools["p"] = ("look",)
    costs = KvCosts(step_s=0.02, fill_s=1.0, chunk=64, copy_s=1e-9, host_tokens=1000 * host)
    world.memory.has_pool("e", 1000, costs=costs)
    op = make_op("a", "p", 100)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.gate.use("m").busy.note(1.0, 0.0)
    if waits:
        world.memory.queued(make_op("b", "b", 990), "m", True, 0.5)
    world.memory.admit("m", 1000, 0.5)
    written = tuple(range(100, 110))
    world.memory.paused("e", PrimitiveId("a", "p"), op, make_usage(100), PAUSED_AT, written)
    return world, replace(make_op("a", "next", 110), open=True)


def test_the_last_part_of_a_prompt_ends_the_pause() -> None:
    """The open op does not. Its last part comes after 31 s."""
    world, early = paused()
    pauses = world.memory.paused_contexts
    expected = pauses.expect("", ("look",))
    assert world.memory.queued(early, "m", True, 1.1) == []
    assert pauses.expect("", ("look",)) == expected
    whole = replace(early, open=False, tokens=tuple(range(130)))
    assert world.memory.early.end(whole)
    world.memory.queued(whole, "m", True, 32.0)
    learned = pauses.expect("", ("look",))
    assert expected is not None and learned is not None and learned > 2 * expected
    assert not world.memory.early.end(whole), "it has ended once"


def test_a_prompt_that_goes_on_where_nothing_paused_is_queued_at_once() -> None:
    """The open op of another application, and one that begins otherwise."""
    world, early = paused()
    for op in (replace(early, hints=make_op("c", "c", 9).hints), replace(early, tokens=(7, 8, 9))):
        assert world.memory.early.may_fill(op)
        world.memory.queued(op, "m", True, 1.1)
        assert not world.memory.early.end(replace(op, open=False))


def test_an_open_op_that_is_taken_back_leaves_the_pause_as_it_was() -> None:
    """The application still pauses: its next call comes after 31 s."""
    world, early = paused()
    world.memory.queued(early, "m", True, 1.1)
    world.memory.dropped("e", early, 2.0)
    world.memory.queued(make_op("a", "next", 130), "m", True, 32.0)
    id = PrimitiveId("a", "again")
    world.memory.finished("e", id, make_op("a", "next", 130), make_usage(130), 33.0)
    [one] = [one for one in world.memory._applications if one.id == "a"]
    assert (one.busy, one.pause_s) == (0, 31.0)


@pytest.mark.parametrize(
    ("host", "waits", "may"),
    [(False, False, True), (True, False, False), (False, True, False)],
    ids=["alone", "it gave its place up", "another one waits"],
)
def test_a_prompt_is_filled_in_a_pause_where_nobody_needs_the_room(
    host: bool, waits: bool, may: bool
) -> None:
    """The context is dear to compute, so that it stays in the cache where it cannot be copied."""
    world, early = paused(host=host, waits=waits)
    assert world.memory.gate.is_admitted("a") is not host
    assert world.memory.early.may_fill(early) is may


def test_what_an_engine_has_filled_has_its_place() -> None:
    """Its application gave the place up before, and does not wait for it again."""
    world, early = paused(host=True)
    world.memory.queued(early, "m", True, 1.1)
    whole = replace(early, open=False, tokens=tuple(range(130)))
    assert world.memory.early.end(whole)
    said = world.memory.queued(whole, "m", True, 32.0, placed=True)
    assert said == [RetainContext("e", "p", Retention.KEEP)]
    assert world.memory.gate.is_admitted("a")
    assert world.memory.gate.may_start("a")
