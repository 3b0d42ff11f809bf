"""Host memory beside a simulated GPU: what is dropped, what comes back, and what is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null.test_memory import World, make_op, make_usage
from weftline_engine import api
from weftline_engine.api import KvCosts, Retention
from weftline_engine.pretend.host_tier import HostOrder, HostTier, keys
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.keeper import Want
from weftline_server.schedule.memory.verbs import RetainContext
from weftline_server.schedule.rounds import tokens_beside

HOST = KvCosts(step_s=0.02, fill_s=1e-3, chunk=64, copy_s=1e-6, host_tokens=5000)


def test_what_host_memory_holds_beside_the_cache() -> None:
    """All of its copies, where contexts are copied one by one. vLLM copies each block, so its
    copies are of the same contexts as its KV cache."""
    engine = api.Description(model="m", kv_tokens=1000, kv_costs=HOST)
    assert tokens_beside(engine) == 5000
    assert tokens_beside(replace(engine, host_tokens=5000)) == 4000
    assert tokens_beside(replace(engine, host_tokens=800, kv_costs=None)) == 0
    assert tokens_beside(replace(engine, kv_costs=None)) == tokens_beside(None) == 0


def text(number: int, blocks: int = 2) -> list[int]:
    return keys("", range(1000 * number, 1000 * number + 16 * blocks), 16)


def test_a_block_has_the_key_of_all_tokens_before_it() -> None:
    """Two texts with the same second block share no key, unless they share the first one."""
    one, other = keys("", (1, 2, 3, 4), 2), keys("", (9, 2, 3, 4), 2)
    assert len(one) == 2 and not set(one) & set(other)
    assert keys("", (1, 2, 7), 2) == one[:1]
    assert keys("tenant", (1, 2), 2) != one[:1]


@pytest.mark.parametrize("order", HostOrder)
def test_what_host_memory_drops(order: HostOrder) -> None:
    """Three contexts of two blocks, with room for two of them. vLLM drops the first. By next use
    the second goes, which is read last, and then again the one that is read last."""
    tier = HostTier(4, order)
    for number, (name, pause_s) in enumerate((("a", 5.0), ("b", 900.0), ("c", 60.0))):
        tier.store(name, name, text(number), 0.0)
        tier.expect(name, pause_s)
    held = [tier.found(text(number), 0) for number in range(3)]
    assert held == ([0, 2, 2] if order is HostOrder.LRU else [2, 0, 2])
    tier.store("d", "d", text(3), 1.0)
    tier.expect("d", 10.0)
    tier.store("e", "e", text(4), 1.0)
    assert len(tier) == 4
    if order is HostOrder.NEXT_USE:
        assert [tier.found(text(number), 0) for number in (0, 2)] == [2, 0], "a is read first"


def make(name: str, begin: int) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(range(begin, begin + 64)),
        sampling=api.SamplingParams(max_tokens=1),
    )


def test_a_request_waits_for_its_copy() -> None:
    """On a cache of five blocks the second context evicts all but one block of the first. Two come
    back by a copy in 1.6 s each, and the last one is computed again in a step of 1 s."""

    async def main(loop: VirtualLoop) -> list[tuple[str, int, float]]:
        cost = StepCost(step_s=1.0, fill_s=0.0, sequence_s=0.0, copy_s=0.1)
        config = SimulatedConfig(
            cost=cost, kv_tokens=80, host_tokens=1000, host_order=HostOrder.LRU
        )
        engine, found = SimulatedEngine(config, loop.time), list[tuple[str, int, float]]()
        await engine.start()
        for name, begin in (("a", 0), ("b", 500), ("again", 0)):
            engine.submit(make(name, begin))
            began = loop.time()
            async for events in engine.events():
                ends = [one for one in events if isinstance(one, api.Finished)]
                if ends:
                    engine.free(name)
                    usage = ends[0].usage
                    found.append((name, usage.cached_tokens, round(loop.time() - began, 3)))
                    break
        await engine.close()
        return found

    assert run(main) == [("a", 0, 1.0), ("b", 0, 1.0), ("again", 48, 4.2)]


def test_a_context_behind_a_call_goes_to_host_memory_where_room_is_short() -> None:
    """Two sessions hold 1,020 tokens, of 1,000. Both are admitted, because host memory has room.
    The one that ends its call is kept there. Without host memory the second one waits."""
    for costs, host in ((HOST, 5000), (None, 0)):
        world = World()
        world.memory.has_pool("e", 1000, costs=costs)
        for name in "ab":
            world.memory.queued(make_op(name, f"p{name}", 500), "m", True, 0.0)
            world.memory.admit("m", 1000, 0.0, host)
        assert world.memory.gate.counts == ((2, 0) if host else (1, 1))
        world.wants["pa"] = Want()
        op = make_op("a", "pa", 500)
        made = world.memory.finished("e", PrimitiveId("a", "pa"), op, make_usage(700), 1.0)
        retained = [one.retention for one in made if isinstance(one, RetainContext)]
        assert retained == [Retention.SWAP if host else Retention.EVICTABLE]
