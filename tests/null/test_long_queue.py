"""A round of placing costs what can be placed, however many calls wait."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Hints
from weftline_server.schedule.placement.round import MOST_MISSED, place_lines
from weftline_server.schedule.placement.round_data import Class, EngineLoad, Queued
from weftline_server.schedule.placement.scores import ORDER
from weftline_server.schedule.placement.waiting_lines import WaitingLines


class Counted(WaitingLines):
    """Counts the calls that a round looks at."""

    looked = 0

    def in_turn(
        self, model: str, served: Mapping[str, float], full: Container[Class]
    ) -> Iterator[Queued]:
        for item in super().in_turn(model, served, full):
            self.looked += 1
            yield item


def call(id: str, turn: float, tenant: str = "a", tokens: int = 10, **hints: Any) -> Queued:
    wish = Hints(turn=turn, application=id, **hints)
    return Queued(
        id=id, model="m", kind="generate", queued=0.0, tokens=tokens, hints=wish, tenant=tenant
    )


def waiting(*items: Queued) -> Counted:
    found = Counted(ORDER["app"])
    for item in items:
        found.add(item)
    return found


def test_a_round_looks_at_what_it_places() -> None:
    """Sixty thousand calls of one tenant wait, and three of another. Four places are free."""
    lines = waiting(
        *(call(f"a{n}", float(n)) for n in range(60_000)),
        *(call(f"b{n}", 1e6 + n, "b") for n in range(3)),
    )
    engine = EngineLoad(name="e", model="m", max_running=4)
    placed = place_lines(lines, [engine], "app", 0.0, {})
    assert [one.id for one in placed] == ["a0", "b0", "a1", "b1"]
    assert lines.looked == 4
    assert place_lines(lines, [EngineLoad(name="n", model="n")], "app", 0.0, {}) == []
    assert lines.looked == 4


def test_calls_without_room_hide_no_other_class() -> None:
    """Ten thousand throughput calls find no room beside a user's call, and a chat came later. The
    round passes over the rest of them, and the chat starts.
    """
    bulk = (call(f"j{n}", float(n), criterion="throughput") for n in range(10_000))
    lines = waiting(*bulk, call("chat", 1e6))
    load = EngineLoad(
        name="e", model="m", running=1, held=900, latency=900, bounded=900, latency_tokens=900
    )
    assert [one.id for one in place_lines(lines, [load], "app", 0.0, {})] == ["chat"]
    assert lines.looked <= MOST_MISSED + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans()),
        max_size=30,
        unique=True,
    ),
    st.sets(st.integers(0, 29)),
)
def test_lines_stay_in_order(some: list[tuple[int, str, bool]], gone: set[int]) -> None:
    """Calls come and go in any order: each tenant's keep the order of their turns."""
    items = [
        call(str(n), float(at), tenant, criterion="throughput" if bulk else "latency")
        for n, (at, tenant, bulk) in enumerate(some)
    ]
    lines = waiting(*items)
    for n in gone & set(range(len(items))):
        lines.remove(str(n))
    left = [one for n, one in enumerate(items) if n not in gone]
    found = list(lines.in_turn("m", {}, set()))
    for tenant in "abc":
        expected = sorted((one for one in left if one.tenant == tenant), key=lambda one: one.turn)
        assert [one.id for one in found if one.tenant == tenant] == [one.id for one in expected]
    assert lines.tenants() == {one.tenant for one in left}
