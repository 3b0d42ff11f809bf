"""Contexts of paused calls that are copied to host memory, and when they come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null.test_memory import World, make_op, make_usage, pause
from weftline_engine.api import KvCosts, Retention
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S
from weftline_server.schedule.memory.verbs import AdviseContext, FreeContext, RetainContext, Verb

CHEAP = KvCosts(step_s=0.02, fill_s=1e-3, chunk=64, copy_s=1e-9, host_tokens=800)


def test_paused_contexts_go_to_host_memory_where_others_wait_for_room() -> None:
    """The copies have the size of the pool at most: the oldest are dropped first. One that is
    larger than the pool may just be evicted, as all may where nobody waits."""
    world = World()
    assert pause(world, "a", "p", 100, 1.0)[-1] == RetainContext("e", "p", Retention.EVICTABLE)
    world.memory.gate.leave("a")
    world.memory.queued(make_op("waits", "w", 100), "m", True, 2.0)

    def paused(name: str, size: int) -> list[Verb]:
        op = make_op("a", name, size)
        return world.memory.paused("e", PrimitiveId("a", name), op, make_usage(size), 3.0)[-2:]

    advice = [AdviseContext("e", name, UNKNOWN_PAUSE_S, None) for name in "tqr"]
    assert paused("t", 1000) == [advice[0], RetainContext("e", "t", Retention.EVICTABLE)]
    assert paused("q", 490) == [advice[1], RetainContext("e", "q", Retention.SWAP)]
    assert paused("r", 390) == [advice[2], RetainContext("e", "r", Retention.SWAP)]
    assert paused("s", 290) == [
        RetainContext("e", "s", Retention.SWAP),
        RetainContext("e", "q", Retention.DROP),
    ]
    assert world.memory.abandoned("r") == [FreeContext("e", "r")]
    assert paused("u", 590)[-1] == RetainContext("e", "u", Retention.SWAP)


@pytest.mark.parametrize("costs", [None, CHEAP])
def test_a_context_is_copied_where_another_waits_for_room(costs: KvCosts | None) -> None:
    """A copy is the least waste."""
    world = World()
    world.memory.has_pool("e", 1000, costs=costs)
    world.memory.queued(make_op("a", "p", 390), "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    world.memory.queued(make_op("waits", "w", 900), "m", True, 0.5)
    found = pause(world, "a", "p", 390, 1.0)
    assert [one for one in found if isinstance(one, RetainContext)] == [
        RetainContext("e", "p", Retention.SWAP)
    ]


def test_a_copy_comes_back_for_a_prompt_that_begins_with_its_own() -> None:
    """The client has sent the model's call back as text, which became other tokens. The copy holds
    the prompt before it. An op that continues the context brings the copy back by itself."""
    world = World()
    pause(world, "a", "p", 100, 1.0)
    other = replace(make_op("a", "goes on", 130), tokens=(*range(105), *range(500, 530)))
    assert world.memory.restoring("e", other) == [], "nothing was copied"
    world = World()
    world.memory.queued(make_op("a", "p", 100), "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    world.memory.queued(make_op("waits", "w", 950), "m", True, 0.5)
    pause(world, "a", "p", 100, 1.0)
    assert world.memory.restoring("e", other) == [RetainContext("e", "p", Retention.KEEP)]
    assert world.memory.restoring("f", other) == []
    longer = make_op("a", "goes on", 130)
    assert world.memory.restoring("e", world.memory.continuing("e", longer)) == []
    assert world.memory.restoring("e", make_op("b", "stranger", 130)) == []
    assert world.memory.abandoned("p") == [FreeContext("e", "p")]
    assert world.memory.restoring("e", other) == []
