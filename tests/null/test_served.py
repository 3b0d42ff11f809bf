"""Turns of tenants where several servers place their calls: each counts what all have given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued
from weftline_server.schedule.placement.shares import Served

SIZE = 100


def queue(tenant: str, count: int) -> list[Queued]:
    return [
        Queued(id=f"{tenant}{n}", model="m", kind="generate", queued=float(n), tokens=SIZE,
               hints=Hints(), tenant=tenant)
        for n in range(count)
    ]  # fmt: skip


def round_of(served: Served, waiting: list[Queued]) -> str:
    """Place one call, and return whose it is."""
    counts = served.begin(item.tenant for item in waiting)
    [one] = place(waiting, [EngineLoad(name="e", model="m", max_running=1)], "app", 0.0, counts)
    tenant = one.id[0]
    served.got(tenant, SIZE)
    return tenant


@given(st.integers(1, 30), st.integers(1, 30))
def test_what_another_server_gave_is_made_up_for(before: int, between: int) -> None:
    """Both tenants wait at one server, and one of them also at another, which gives it `between`
    calls until the first one hears of them. Then the other tenant gets as many in a row. It was
    behind by what was placed until then.
    """
    here, there = Served(), Served()
    here.hear(there.given)
    both = [*queue("a", 4), *queue("b", 4)]
    for _ in range(2 * before):
        round_of(here, both)
    assert here.given == {"a": before * SIZE, "b": before * SIZE}
    for _ in range(between):
        assert round_of(there, queue("a", 4)) == "a"
    here.hear(there.given)
    assert [round_of(here, both) for _ in range(between)] == ["b"] * between
    assert {round_of(here, both), round_of(here, both)} == {"a", "b"}


def test_a_server_that_ends_takes_nothing_back() -> None:
    """The sum over the others falls, and grows again from there."""
    served = Served()
    served.hear({"a": 1000})  # from before this server came
    served.hear({"a": 1300, "b": 50})
    assert served.begin(["a", "b"]) == {"a": 300, "b": 50}
    served.hear({"a": 100})
    served.hear({"a": 150})
    assert served.begin(["a", "b"]) == {"a": 350, "b": 50}
