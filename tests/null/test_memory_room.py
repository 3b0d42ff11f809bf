"""How much room applications need at once, and when one gives its place up."""

from __future__ import annotations

import pytest

from tests.null.test_memory import World, app, make_op, make_usage
from weftline_engine.api import KvCosts
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.admission import peak
from weftline_server.schedule.memory.applications import Application, Habits


def test_what_is_not_written_yet_counts_when_it_is() -> None:
    """Two calls of 500 tokens, half of which they write. When one is at its end the other has 250:
    they hold 750 at most. Of an application with two calls at once nothing is known."""
    inside = [app("a", 1.0, 500, 500), app("b", 2.0, 500, 500)]
    inside[0].newest.left, inside[1].newest.left = 1, 250
    assert peak(inside) == 499 + 250 + 2
    inside[0].newest.left = 250
    assert peak(inside) == 1000
    one = Application("c", "m", True, 0.0, 0.0, Habits())
    one.queued(500, 0.0, 250)
    assert one.newest.left == 250
    one.queued(400, 0.0, 100)
    assert one.newest.left == 0
    world = World()
    for name in "de":
        world.memory.queued(make_op(name, name, 250, 250), "m", True, 0.0)
        world.memory._applications.enter(name, "m", "", True, 0.0, 500).habits.released = 1.0
        world.memory.gate.admit("m", 750, 0.0)
    for left, enters in ((3, False), (2, True)):
        world.memory.gate.progress([{"d": left, "stranger": 9}])
        world.memory.gate.admit("m", 752, 1.0)
        assert world.memory.gate.is_inside("e") is enters, "d ends with 500, when e has 252"


@pytest.mark.parametrize(("pause_s", "stays"), [(0.45, True), (0.55, False)])
def test_giving_up_is_worth_half_of_computing_again(pause_s: float, stays: bool) -> None:
    """What gives its place up keeps its context until the room is needed. To compute 510 tokens
    again wastes as much as a pause of one second, so it gives its place up for half a second.
    """
    world = World()
    world.memory.has_pool("e", 1000, costs=KvCosts(step_s=0.01, fill_s=1 / 510, chunk=510))
    op = make_op("a", "p", 500)
    world.memory.queued(op, "m", True, 0.0)
    world.memory.gate.admit("m", 1000, 0.0)
    one = world.memory._applications.find("a")
    assert one is not None
    one.pause_s = pause_s
    world.memory.paused("e", PrimitiveId("a", "p"), op, make_usage(500), 1.0)
    assert world.memory.gate.is_inside("a") is stays
