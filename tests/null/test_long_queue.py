"""A round of placing costs what can be placed, however many calls wait."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping
from cProfile import Profile
from dataclasses import replace
from itertools import count
from pstats import Stats
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.simulator.world import asking, world
from weftline.contract.protocol import SubmitBody
from weftline_engine.api import Hints, Op
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.memory.admission_line import AdmissionLine
from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import CONSIDERED, CONSIDERED_OF_TENANT
from weftline_server.schedule.memory.habits import Habits
from weftline_server.schedule.placement.round import MOST_MISSED, place_lines
from weftline_server.schedule.placement.round_data import Class, EngineLoad, Queued
from weftline_server.schedule.placement.scores import ORDER
from weftline_server.schedule.placement.waiting_lines import WaitingLines
from weftline_server.schedule.queue import Queue
from weftline_server.schedule.suspects import SUSPECT_AFTER


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
        lines.discard(str(n))
    left = [one for n, one in enumerate(items) if n not in gone]
    found = list(lines.in_turn("m", {}, set()))
    for tenant in "abc":
        expected = sorted((one for one in left if one.tenant == tenant), key=lambda one: one.turn)
        assert [one.id for one in found if one.tenant == tenant] == [one.id for one in expected]
    assert lines.tenants() == {one.tenant for one in left}


class LineMachine(RuleBasedStateMachine):
    """Works come, are fed and go, and their applications wait, enter and end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue("app")
        self.numbers = count()
        self.works: dict[str, Work] = {}
        self.held: set[str] = set()
        self.ends: set[str] = set()

    @rule(
        application=st.sampled_from("abc"),
        kind=st.sampled_from(("generate", "embed")),
        deaths=st.sampled_from((0, SUSPECT_AFTER)),
    )
    def comes(self, application: str, kind: str, deaths: int) -> None:
        id = f"op{next(self.numbers)}"
        tokens = (1, 2) if kind == "generate" else None
        op = Op(id=id, kind=kind, context=id, tokens=tokens, hints=Hints(application=application))
        work = Work(PrimitiveId(application, id), "m", op, 0.0, tokens=2, deaths=deaths)
        self.works[id] = work
        self.queue.add(work)

    @rule(application=st.sampled_from("abc"), may_start=st.booleans())
    def allows(self, application: str, may_start: bool) -> None:
        (self.held.discard if may_start else self.held.add)(application)
        self.queue.allow(application, may_start, 1.0)

    @rule(application=st.sampled_from("abc"))
    def ends_soon(self, application: str) -> None:
        self.ends.add(application)
        self.queue.withdraw(application)

    @rule(application=st.sampled_from("abc"))
    def has_ended(self, application: str) -> None:
        self.ends.discard(application)
        self.held.discard(application)
        self.queue.forget(application)

    @precondition(lambda self: self.works)
    @rule(at=st.integers(0, 1000), replans=st.booleans())
    def goes(self, at: int, replans: bool) -> None:
        id = sorted(self.works)[at % len(self.works)]
        if replans:
            hints = replace(self.works[id].op.hints, turn=float(at))
            self.works[id] = replace(self.works[id], op=replace(self.works[id].op, hints=hints))
            assert self.queue.replan(id, hints)
            return
        self.works.pop(id)
        assert self.queue.remove(id) is not None

    @invariant()
    def lines_have_what_may_be_placed(self) -> None:
        free = [
            work.op.id
            for work in self.works.values()
            if (application := work.op.hints.application) not in self.ends
            and work.deaths < SUSPECT_AFTER
            and not (application in self.held and work.item.has_prompt)
        ]
        assert sorted(one.id for one in self.queue.lines.in_turn("m", {}, set())) == sorted(free)
        assert {work.op.id for work in self.queue} == {
            id for id, work in self.works.items() if work.op.hints.application not in self.ends
        }


TestLines = LineMachine.TestCase


def test_an_op_knows_when_its_application_was_admitted() -> None:
    """It waits from 1 to 5. Another one, which comes later, did not wait."""
    queue = Queue("app")
    for id, at in (("a", 1.0), ("b", 6.0)):
        op = Op(id=id, kind="generate", context=id, tokens=(1,), hints=Hints(application="s"))
        queue.add(Work(PrimitiveId("s", id), "m", op, at, tokens=1))
        if id == "a":
            queue.allow("s", False, 1.0)
            queue.allow("s", True, 5.0)
    assert (queue.allowed_at("a"), queue.allowed_at("b")) == (5.0, None)
    assert queue.remove("a") is not None
    assert queue.allowed_at("a") is None


def _waits(line: AdmissionLine, tenant: str, count: int) -> None:
    for number in range(count):
        id = f"{tenant}{number}"
        line.add(Application(id, "m", True, 0.0, 0.0, Habits(), salt=tenant))


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        ({"a": 100, "b": 156}, {"a": 100, "b": 128}),
        ({"a": 200, "b": 3}, {"a": 128, "b": 3}),
        ({"a": 20_000}, {"a": CONSIDERED}),
        ({f"t{n}": 9 for n in range(100)}, {f"t{n}": CONSIDERED_OF_TENANT for n in range(100)}),
        ({f"t{n}": 1 for n in range(500)}, {f"t{n}": 1 for n in range(CONSIDERED)}),
    ],
)
def test_admission_looks_at_the_first_of_each_tenant(
    waiting: Mapping[str, int], first: Mapping[str, int]
) -> None:
    """A tenant with many applications hides none of another tenant."""
    line = AdmissionLine()
    for tenant, many in waiting.items():
        _waits(line, tenant, many)
    found = [one.id for one in line.first("m")]
    assert found == [f"{tenant}{n}" for tenant, count in first.items() for n in range(count)]
    assert (len(line), line.waits("m"), line.waits("n")) == (sum(waiting.values()), True, False)
    for id in found:
        assert line.remove(id) is not None
    assert not set(found) & {one.id for one in line.first("m")}


def calls_of_a_round(waiting: int) -> int:
    """The Python calls of a placement round that admits an application, while so many wait for a KV
    cache."""

    async def main(loop: VirtualLoop) -> int:
        async with world(loop, SimulatedConfig(kv_tokens=2000)) as made:
            sessions = [made.driver.open("a") for _ in range(waiting)]
            for number, session in enumerate(sessions):
                asked = asking(f"w{number % 2048} " * 60, "v", 100, ignore_eos=True)
                await made.driver.submit(session, SubmitBody(calls=(asked,)))
            await asyncio.sleep(0.5)
            gate = made.driver.dispatcher.memory.gate
            waits = len(gate.line)
            assert waits > waiting - 20
            made.driver.close(sessions[0])
            profile = Profile()
            profile.runcall(made.driver.dispatcher._rounds.run)
            assert len(gate.line) < waits, "the room of the one that ended is given away"
            return int(Stats(profile).total_calls)  # type: ignore[attr-defined]

    return run(main)


def test_a_round_costs_the_same_however_many_applications_wait() -> None:
    """It looks at those that may be admitted."""
    assert calls_of_a_round(2400) < 1.1 * calls_of_a_round(600)
