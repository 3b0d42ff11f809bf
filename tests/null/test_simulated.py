"""The simulated engine, alone and under the whole server, in simulated time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.simulator.agents import Agents, in_turn, simulate
from tests.simulator.world import TWO_CORES
from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

COST = StepCost(step_s=1.0, fill_s=0.1, sequence_s=0.5, token_s=0.0)


def make_op(name: str, prompt: int, output: int) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(range(prompt)),
        sampling=api.SamplingParams(max_tokens=output),
    )


async def ended(engine: SimulatedEngine, count: int) -> dict[str, api.Finished]:
    """Return the first `count` ends, by op."""
    found: dict[str, api.Finished] = {}
    async for events in engine.events():
        found |= {one.op: one for one in events if isinstance(one, api.Finished)}
        if len(found) == count:
            break
    return found


def test_a_step_takes_the_time_of_the_profile() -> None:
    """20 prompt tokens take a step of 1 + 2 s, then two more tokens take 1.5 s each. A second op
    with the same prompt finds 16 of its tokens, one block, in the cache.
    """

    async def main(loop: VirtualLoop) -> list[api.Finished]:
        engine = SimulatedEngine(SimulatedConfig(cost=COST), loop.time)
        await engine.start()
        found = []
        for name in "ab":
            engine.submit(make_op(name, 20, 3))
            found.append((await ended(engine, 1))[name])
        await engine.close()
        return found

    first, second = run(main)
    assert (first.usage.filled, first.time) == (3.0, 6.0)
    assert second.usage.cached_tokens == 19
    assert second.time - first.time == pytest.approx(1.0 + 0.1 + 2 * 1.5)


def test_an_answer_depends_on_its_prompt_alone() -> None:
    """It is the same alone, and beside ops that preempt it on a pool too small for all."""

    async def main(loop: VirtualLoop, count: int) -> str:
        engine = SimulatedEngine(SimulatedConfig(cost=COST, kv_tokens=128), loop.time)
        await engine.start()
        for number in range(count):
            engine.submit(make_op(f"op{number}", 30 + number, 20))
        said, left = "", count
        async for events in engine.events():
            said += "".join(e.text for e in events if isinstance(e, api.Part) and e.op == "op0")
            left -= sum(isinstance(e, api.Finished) for e in events)
            if not left:
                break
        await engine.close()
        return said

    alone = run(lambda loop: main(loop, 1))
    assert len(alone.split()) == 20
    assert run(lambda loop: main(loop, 6)) == alone


def test_cancel_feed_and_free_are_those_of_the_contract() -> None:
    """One op is cancelled in the middle. An open one is fed, ends, and leaves a context that is
    freed."""

    async def main(loop: VirtualLoop) -> list[str]:
        engine = SimulatedEngine(SimulatedConfig(cost=COST), loop.time)
        await engine.start()
        engine.submit(make_op("gone", 20, 500))
        opened = api.Op(
            id="open",
            kind=api.Kind.GENERATE,
            context="open",
            tokens=(1, 2),
            sampling=api.SamplingParams(max_tokens=1),
            open=True,
        )
        engine.submit(opened)
        await asyncio.sleep(10.0)
        engine.cancel("gone")
        engine.feed("open", 2, (3, 4), True)
        said = []
        async for events in engine.events():
            said += [type(e).__name__ for e in events if not isinstance(e, api.Part)]
            if "Finished" in said:
                break
        engine.retain("open", api.Retention.EVICTABLE)
        engine.free("open")
        await asyncio.sleep(10.0)
        assert not engine.book.contexts.named
        await engine.close()
        return said

    moved = "ContextMoved"
    assert run(main) == ["Accepted", "Accepted", "Failed", "Finished", moved, moved]


AGENTS = Agents(
    agents=6, applications=20, turns=4, shared=64, task=600, result=150, answer=4, pause_s=0.2
)


def test_admission_and_retention_serve_more_agents_than_lru() -> None:
    """Six agents run on a pool for two. Each part alone helps, both together help most, and no
    agent waits longer than without them.
    """

    def rate(*without: str, predicts: bool = True) -> tuple[float, float]:
        config = SimulatedConfig(kv_tokens=AGENTS.pool, part_tokens=10, predicts=predicts)
        result = simulate(AGENTS, config, frozenset(without))
        assert len(result.lasted) == AGENTS.applications
        return result.rate, max(result.lasted)

    lru, lru_slowest = rate("retention", "admission", predicts=False)
    both, slowest = rate()
    assert both > 1.5 * lru
    assert rate("admission")[0] < both
    assert lru < rate("retention")[0] < both
    assert slowest < lru_slowest


def test_large_applications_do_not_wait_for_all_small_ones() -> None:
    """Applications of three sizes run on a pool for a quarter of them. They wait in proportion to
    what their contexts cost. So the largest take less than two thirds as long as with LRU that
    admits all, and all end a third earlier. With a semaphore of four in the client the largest take
    a little less, because it goes by arrival, and all end later.
    """
    agents = Agents(
        agents=8, applications=24, turns=4, shared=64, task=600, result=250, answer=8, pause_s=1.0
    )
    agents = replace(agents, factors=(1, 2, 4))
    config = SimulatedConfig(kv_tokens=6000, part_tokens=10)
    ours = simulate(agents, config, frozenset())
    plain = replace(config, predicts=False)
    off = frozenset({"retention", "admission"})
    # What LRU evicts among contexts of one age depends on the ids of sessions: 40 to 53 s.
    runs = [simulate(replace(agents, at_once=None), plain, off) for _ in range(3)]
    _, lru, _ = sorted(runs, key=lambda one: one.largest_s)
    few = simulate(replace(agents, at_once=4), plain, off)
    assert ours.largest_s < 0.66 * lru.largest_s and ours.largest_s < 1.2 * few.largest_s
    assert max(ours.ended) < 0.7 * max(lru.ended) and max(ours.ended) < max(few.ended)


def test_agents_that_fit_enter_while_an_engine_decodes() -> None:
    """Eight agents fit into the cache, and not at the sizes that are expected of them before one
    has ended. On a GPU the engine decodes nearly all the time, and has room for more sequences. So
    all end at most a fifth later than with LRU that admits all: 109 s and 97. They took 124 s where
    an engine that decodes had no time to spare.
    """
    cost = StepCost(step_s=0.14, fill_s=0.0004, attend_s=4.2e-7, token_s=1.9e-5)
    config = SimulatedConfig(cost=cost, kv_tokens=20_000, part_tokens=1)
    agents = Agents(
        agents=8, applications=8, turns=4, shared=0, task=2000, result=30, answer=40, pause_s=2.0
    )
    ours = simulate(agents, config, frozenset())
    plain = replace(config, predicts=False)
    lru = simulate(agents, plain, frozenset({"retention", "admission"}))
    assert ours.computed == lru.computed == ours.needed
    assert max(ours.ended) < 1.2 * max(lru.ended)


def test_admission_matches_the_best_semaphore() -> None:
    """It serves as many applications a minute as LRU with the best semaphore, less at
    most a tenth.
    """
    config = SimulatedConfig(kv_tokens=AGENTS.pool, part_tokens=10)
    ours = simulate(AGENTS, config, frozenset())
    plain = replace(config, predicts=False)
    off = frozenset({"retention", "admission"})
    rooms = (replace(AGENTS, at_once=room) for room in range(1, AGENTS.agents + 1))
    best = max(simulate(one, plain, off).rate for one in rooms)
    assert ours.rate > 0.9 * best


def test_what_replaces_agents_without_a_name_does_not_crowd_the_cache() -> None:
    """Nobody tells when these agents end. The first of them end together, and keep their rooms for
    some pauses, in which the engine is idle. The next ones fit into these rooms. The engine's idle
    time before them admits no others beside them, so little is computed twice.
    """
    agents = Agents(agents=16, applications=32, named=False)
    config = replace(TWO_CORES, kv_tokens=agents.pool)
    ours = simulate(agents, config, frozenset())
    # 25 runs, which differ by the ids of sessions, gave 1.03 to 1.19; without admission it is 5.2.
    assert ours.computed < 1.3 * ours.needed
    plain = replace(config, predicts=False)
    lru = simulate(agents, plain, frozenset({"retention", "admission"}))
    assert max(ours.ended) < 0.4 * max(lru.ended)


def test_larger_agents_without_a_name_do_not_crowd_the_cache_either() -> None:
    """Eight small agents have ended when 16 large ones begin at once, and five of these fit. That
    none of the 16 has gone on before all have begun says nothing against their going on. Where an
    agent has not come back for long, its kind learns how large such agents become.
    """
    small = Agents(
        agents=8, applications=8, turns=3, shared=0, task=165, result=12, answer=4, named=False
    )
    large = replace(small, agents=16, applications=16, task=700, result=28, answer=10, seed=1)
    cost = StepCost(step_s=0.06, fill_s=0.0027, attend_s=1e-6, sequence_s=0.004)
    config = replace(TWO_CORES, cost=cost, kv_tokens=4096, step_tokens=2048, beside_tokens=2048)
    _, first, second = in_turn(
        [small, large, replace(large, seed=2)], config, frozenset(), gap_s=150.0
    )
    plain = replace(config, predicts=False)
    best = simulate(replace(large, at_once=4), plain, frozenset({"retention", "admission"}))
    for ours in (first, second):
        assert ours.computed < 1.1 * ours.needed
        assert max(ours.ended) < 1.2 * max(best.ended)
