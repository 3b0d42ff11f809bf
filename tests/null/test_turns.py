"""The order of applications: who is overtaken, by whom, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.programs import Program, Step, chain, perform
from tests.simulator.world import world
from weftline.contract.protocol import Criterion
from weftline_engine.api import Hints
from weftline_engine.pretend.simulation import SimulatedConfig, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.schedule.placement.round import place
from weftline_server.schedule.placement.round_data import EngineLoad, Queued
from weftline_server.schedule.turns import (
    MOST_LATER_S,
    SHARE,
    STAND_BACK_S,
    Pace,
    turn,
)
from weftline_server.session.burst import Burst

COST = StepCost(step_s=0.005, fill_s=0.0006, sequence_s=0.0)


@dataclass
class Overtaken:
    """A large application: the small ones that ended while it ran, and how long both took."""

    seconds: float
    short_s: list[float] = field(default_factory=list)


def behind(policy: str) -> Overtaken:
    """A chain of three calls of 2,000 tokens comes to two places, on which eight clients send
    applications of 60 tokens without a pause.
    """

    async def main(loop: VirtualLoop) -> Overtaken:
        config = SimulatedConfig(cost=COST, max_running=2, bounds=False)
        async with world(loop, config, policy=policy) as made:
            short: list[float] = []

            async def client(number: int) -> None:
                while True:
                    step = Step(own=40, output=20)
                    short.append((await perform(made, [step], f"{number} {loop.time()}")).seconds)

            clients = asyncio.gather(*(client(number) for number in range(8)))
            await asyncio.sleep(3.0)
            before = len(short)
            ran = await perform(made, chain(3, 1900, 100), "chain")
            clients.cancel()
            return Overtaken(ran.seconds, short[before:])

    return run(main)


def test_small_applications_overtake_a_large_one_for_half_its_time() -> None:
    """The chain was overtaken 1,800 times, and took 140 s, when each of its calls began at the back
    again. The small ones end sooner than in the order of requests.
    """
    plain, ours = behind("request"), behind("app")
    assert (len(plain.short_s), len(ours.short_s)) == (31, 84)
    assert ours.seconds < 1.7 * plain.seconds
    assert fmean(ours.short_s) < fmean(plain.short_s)


def ends(policy: str, programs: Sequence[Program], places: int) -> list[float]:
    """The seconds of applications that come together."""

    async def main(loop: VirtualLoop) -> list[float]:
        config = SimulatedConfig(cost=COST, max_running=places, bounds=False)
        async with world(loop, config, policy=policy) as made:
            all_ran = (perform(made, program, seed) for seed, program in enumerate(programs))
            return [ran.seconds for ran in await asyncio.gather(*all_ran)]

    return run(main)


def test_short_chains_end_one_after_the_other() -> None:
    """Twenty-five chains of eight short calls on four places end at 0.62 of the mean time, and the
    last one a tenth later."""
    programs = [chain(8, 30, 20)] * 25
    plain, ours = ends("request", programs, 4), ends("app", programs, 4)
    assert fmean(plain) > 1.5 * fmean(ours)
    assert max(ours) < 1.1 * max(plain)


@pytest.mark.parametrize("words", [1, 60, 400, 4000])
def test_applications_end_in_their_order_at_every_prompt_length(words: int) -> None:
    """Four applications of two calls share a place (Parrot's Figure 12b). Each one runs as long as
    on an empty engine, and then the next one runs.
    """
    program = [Step(own=words, output=20), Step(own=8, output=20, reads=(0,), late_text=True)]
    [alone] = ends("app", [program], 1)
    ours, plain = sorted(ends("app", [program] * 4, 1)), ends("request", [program] * 4, 1)
    assert ours == pytest.approx([alone, 2 * alone, 3 * alone, 4 * alone], rel=0.1)
    assert fmean(ours) < 0.86 * fmean(plain)


def test_the_turn_of_an_application() -> None:
    """It lets later ones go first for half of its time, and for 80 s at most."""
    late, soon = Criterion.LATENCY, Criterion.TTFT
    assert turn(5.0, 6.0, late, 0) == turn(5.0, 6.0, soon, 0) == 5.0 + SHARE * 6.0
    assert turn(5.0, 1e9, late, 0) == 5.0 + MOST_LATER_S
    assert turn(5.0, 6.0, Criterion.THROUGHPUT, -2) == 8.0 + STAND_BACK_S - 20.0


def test_the_pace_is_learned_for_prompts_and_outputs() -> None:
    """The last calls count most. A model that has run nothing takes no time."""
    pace = Pace()
    assert pace.seconds("m", 100, 10) == 0.0
    pace.learn("m", 100, 1.0, 0, 0.0)
    assert pace.seconds("m", 100, 10) == pytest.approx(1.0)
    for _ in range(200):
        pace.learn("m", 100, 2.0, 10, 5.0)
    assert pace.seconds("m", 100, 10) == pytest.approx(7.0, rel=1e-3)
    assert pace.seconds("other", 100, 10) == 0.0


def test_a_burst_ends_when_nothing_is_under_way() -> None:
    """The next call of a graph is queued when the last one ends, and goes on with the burst. Work
    that a step announces and then adds counts once.
    """
    burst = Burst()
    burst.goes_on(10.0, 300, 40)
    burst.own_s = 2.0
    burst.rests(12.0)
    burst.goes_on(12.0, 200, 20)
    burst.grows(280, 30)
    assert (burst.since, burst.work, burst.output, burst.own_s) == (10.0, 300, 40, 2.0)
    burst.grows(500, 50)
    assert (burst.work, burst.output, burst.own_s) == (500, 50, None)
    burst.rests(15.0)
    burst.goes_on(15.5, 90, 9)
    assert (burst.since, burst.work, burst.output) == (15.5, 90, 9)


@dataclass(frozen=True)
class Chain:
    """An application: when it comes, and the seconds of its calls, one after the other."""

    came: float
    calls: tuple[float, ...]

    @property
    def own_s(self) -> float:
        return sum(self.calls)

    @property
    def turn(self) -> float:
        return turn(self.came, self.own_s, Criterion.LATENCY, 0)


CHAINS = st.lists(
    st.builds(
        Chain,
        st.integers(0, 40).map(float),
        st.lists(st.sampled_from([0.25, 1.0, 4.0]), min_size=1, max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=25,
)


def call(id: str, at: float, turn: float, tenant: str = "", **hints: Any) -> Queued:
    wish = Hints(turn=turn, **hints)
    return Queued(id=id, model="m", kind="generate", queued=at, tokens=1, hints=wish, tenant=tenant)


def served(chains: Sequence[Chain], places: int) -> list[float]:
    """When each application ends on an engine with so many places."""
    ended = [0.0] * len(chains)
    left = [list(one.calls) for one in chains]
    ready = {n: one.came for n, one in enumerate(chains)}  # since when its next call waits
    running: dict[int, float] = {}  # when its call ends
    now = 0.0
    while ready or running:
        for n in [n for n, end in running.items() if end <= now]:
            ended[n] = running.pop(n)
            if left[n]:
                ready[n] = now
        load = EngineLoad(name="e", model="m", running=len(running), max_running=places)
        due = [call(str(n), at, chains[n].turn) for n, at in ready.items() if at <= now]
        for placed in place(due, [load], "app", now):
            del ready[n := int(placed.id)]
            running[n] = now + left[n].pop(0)
        later = (at for at in ready.values() if at > now)
        now = min([*running.values(), *later], default=now)
    return ended


@given(CHAINS, st.integers(1, 3))
def test_the_wait_of_an_application_is_bounded(chains: list[Chain], places: int) -> None:
    """It waits for those whose turn is not later, which came within half of its own time at most,
    and before each of its calls for one call that already runs.
    """
    longest = max(seconds for one in chains for seconds in one.calls)
    for one, end in zip(chains, served(chains, places), strict=True):
        before = sum(other.own_s for other in chains if other.turn <= one.turn) - one.own_s
        assert all(
            other.came <= one.came + SHARE * one.own_s for other in chains if other.turn <= one.turn
        )
        assert end - one.came <= one.own_s + before / places + len(one.calls) * longest + 1e-9


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20), st.integers(1, 4))
def test_a_group_starts_together(others: list[tuple[int, int]], places: int) -> None:
    """No call of another application starts between two members, wherever they stand in the
    queue and however deep they are.
    """
    queue = [
        call(f"o{n}", 0.0, float(when), application=f"o{n}") for n, (when, _) in enumerate(others)
    ]
    for n, at in enumerate((0, len(queue) // 2, len(queue))):
        queue.insert(at, call(f"g{n}", 0.0, 2.0, application="g", group="g"))
    order = ""
    while queue:
        load = EngineLoad(name="e", model="m", max_running=places)
        started = [one.id for one in place(queue, [load], "app", 0.0)]
        order += "".join(one[0] for one in started)
        queue = [one for one in queue if one.id not in started]
    assert "ggg" in order


CRITERIA = st.lists(st.sampled_from(list(Criterion)), min_size=12, max_size=12)


@given(CRITERIA, st.lists(st.integers(0, 9), min_size=12, max_size=12), st.integers(1, 4))
def test_a_criterion_never_makes_another_tenant_wait(
    criteria: list[Criterion], came: list[int], places: int
) -> None:
    """Whatever the calls of one tenant ask for, those of the other start in the same rounds."""

    def rounds(asked: Sequence[Criterion]) -> list[set[str]]:
        queue = [
            call(f"{'ab'[n % 2]}{n}", at, turn(at, 1.0, wish, 0), "ab"[n % 2], criterion=wish)
            for n, (at, wish) in enumerate(zip(map(float, came), asked, strict=True))
        ]
        got = {"a": 0.0, "b": 0.0}
        found: list[set[str]] = []
        while queue:
            load = EngineLoad(name="e", model="m", max_running=places)
            started = {one.id for one in place(queue, [load], "app", 10.0, got)}
            for one in started:
                got[one[0]] += 1.0
            found.append({one for one in started if one[0] == "b"})
            queue = [one for one in queue if one.id not in started]
        return found

    of_b = [Criterion.LATENCY if n % 2 else one for n, one in enumerate(criteria)]
    assert rounds(of_b) == rounds([Criterion.LATENCY] * 12)
