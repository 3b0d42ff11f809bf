"""Placement as a table: a queue and engines in, who starts where out."""

from __future__ import annotations

from weftline_engine.api import Hints
from weftline_server.schedule.policy import EngineLoad, Placement, Queued, place


def queued(id: str, at: float, arrival: float = 0.0, depth: int = 0, model: str = "m") -> Queued:
    hints = Hints(arrival=arrival, depth=depth)
    return Queued(id=id, model=model, queued=at, tokens=100, hints=hints)


def engine(name: str, running: int = 0, room: int = 8, model: str = "m") -> EngineLoad:
    return EngineLoad(
        name=name, model=model, running=running, running_tokens=100 * running, max_running=room
    )


def test_request_policy_is_first_come_first_served() -> None:
    """An ordinary server: applications play no part."""
    late_app_first_call = [queued("b", at=2.0, arrival=0.0), queued("a", at=1.0, arrival=1.0)]
    placed = place(late_app_first_call, [engine("e")], "request")
    assert placed == [Placement("a", "e"), Placement("b", "e")]


def test_app_policy_finishes_the_application_that_came_first() -> None:
    """The older application's last call goes before the younger's first, though it queued later."""
    queue = [queued("young", at=1.0, arrival=5.0), queued("old", at=2.0, arrival=0.0)]
    assert place(queue, [engine("e")], "app") == [Placement("old", "e"), Placement("young", "e")]


def test_in_an_application_the_deeper_call_goes_first() -> None:
    """What more calls wait for is started earlier."""
    queue = [queued("sink", at=1.0, depth=0), queued("source", at=2.0, depth=3)]
    assert [p.id for p in place(queue, [engine("e")], "app")] == ["source", "sink"]


def test_load_is_spread_over_replicas() -> None:
    """Each goes to the engine with the fewest tokens in hand, counting what was just placed."""
    queue = [queued(id, at=i) for i, id in enumerate("abc")]
    placed = place(queue, [engine("e1", running=2), engine("e2")], "app")
    assert placed == [Placement("a", "e2"), Placement("b", "e2"), Placement("c", "e1")]


def test_no_room_is_not_now() -> None:
    """What does not fit stays in the queue; a call for another model is not held up by it."""
    queue = [queued("a", at=0), queued("b", at=1), queued("other", at=2, model="n")]
    engines = [engine("e", running=7), engine("f", model="n")]
    assert place(queue, engines, "request") == [Placement("a", "e"), Placement("other", "f")]
