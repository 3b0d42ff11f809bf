"""A paused context that stayed is demoted when others need its room later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null.test_memory import World, make_op, make_usage
from weftline_engine.api import KvCosts, Retention
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.paused_contexts import LONG_S
from weftline_server.schedule.memory.verbs import AdviseContext, RetainContext, Verb

COPIES = KvCosts(step_s=0.02, fill_s=1e-3, chunk=64, copy_s=1e-6, host_tokens=800)


def pressed(costs: KvCosts, at: float, name: str = "m") -> list[Verb]:
    """A call of 400 tokens pauses at 1 s for about five, alone. At `at` a session of `name` comes
    that does not fit; what is said then. A second one changes nothing.
    """
    world = World()
    world.memory.has_pool("e", 1000, costs=costs)
    op = make_op("a", "p", 390)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.admit("m", 1000, 0.0)
    id = PrimitiveId("a", "p")
    told = world.memory.paused("e", id, op, make_usage(390), 1.0, tuple(range(390, 400)))
    assert told[-1] == RetainContext("e", "p", Retention.EVICTABLE)
    other = make_op("c", "c", 500)
    world.memory.queued(other, "m", True, 1.5)
    assert world.memory.admit("m", 1000, 1.5) == [], "it has room"
    world.memory.queued(make_op("b", "b", 900), name, True, at)
    said = world.memory.admit(name, 1000 if name == "m" else None, at)
    world.memory.queued(make_op("d", "d", 900), "m", True, at)
    if name == "m":
        assert world.memory.admit("m", 1000, at) == [], "it is decided once"
    return said


@pytest.mark.parametrize(("at", "left_s"), [(2.0, 4.0), (11.0, 10.0)])
def test_a_context_is_copied_when_its_room_is_needed(at: float, left_s: float) -> None:
    """It is held again, copied, and let go. It is expected after the rest of its pause, and one
    that is overdue after as long again.
    """
    assert pressed(COPIES, at) == [
        RetainContext("e", "p", Retention.KEEP),
        AdviseContext("e", "p", left_s, None),
        RetainContext("e", "p", Retention.SWAP),
    ]


def test_a_context_is_copied_when_what_enters_takes_its_room() -> None:
    """The session of a paused call has left, so another one enters at once. Both fill more than
    the cache. A smaller one would leave the context where it is.
    """
    world = World()
    world.memory.has_pool("e", 1000, costs=COPIES)
    op = make_op("a", "p", 390)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.admit("m", 1000, 0.0)
    world.memory.paused("e", PrimitiveId("a", "p"), op, make_usage(390), 1.0)
    assert not world.memory.gate.is_admitted("a")
    world.memory.queued(make_op("b", "b", 590), "m", True, 2.0)
    assert world.memory.admit("m", 1000, 2.0) == [], "both fit"
    world.memory.closed("b")
    world.memory.queued(make_op("c", "c", 700), "m", True, 2.5)
    assert world.memory.admit("m", 1000, 2.5) == [
        RetainContext("e", "p", Retention.KEEP),
        AdviseContext("e", "p", 3.5, None),
        RetainContext("e", "p", Retention.SWAP),
    ]
    assert world.memory.gate.is_admitted("c")


def test_a_context_is_given_up_when_copies_are_impossible() -> None:
    """Then it is the first to be evicted."""
    assert pressed(replace(COPIES, host_tokens=0), 2.0) == [
        AdviseContext("e", "p", LONG_S, None),
        RetainContext("e", "p", Retention.EVICTABLE),
    ]


def test_a_context_stays_where_that_is_cheapest() -> None:
    """Its call goes on in a moment, and computing it again takes long. Other models are no reason
    either."""
    dear = replace(COPIES, host_tokens=0, fill_s=1.0)
    assert pressed(dear, 2.0) == []
    assert pressed(COPIES, 2.0, "n") == []
