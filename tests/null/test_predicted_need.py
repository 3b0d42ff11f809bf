"""What a call is predicted to need is what is decided at its pause, and what coming back costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.test_memory import World, make_op, make_usage, pause
from tests.simulator.world import chatting, world
from weftline_engine.api import KvCosts, Retention
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.paused_contexts import LONG_S, PausedContext, PausedContexts
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S
from weftline_server.schedule.memory.rank import MemoryNeed, token_seconds
from weftline_server.schedule.memory.tool_results import MOST_TOOLS, UNKNOWN_TOKENS, ToolResults
from weftline_server.schedule.memory.verbs import AdviseContext, RetainContext, Verb
from weftline_server.schedule.memory.waste import Load, Strategy
from weftline_server.schedule.placement.round_data import EngineLoad

# GPT-J-6B on an A100, with a host tier that some of the contexts fit into.
COSTS = KvCosts(step_s=0.01692, fill_s=4.08e-5, chunk=384, copy_s=1.8e-5, host_tokens=1000)
SIZES = (16, 64, 128, 256, 512, 1000, 1024, 1536, 2048)
PAUSES_S = (1e-4, 0.01, 0.1, 0.7, 3.0, 10.0, 60.0)
LOADS = [(0, 0), (1, 100), (4, 1000), (8, 4000), (16, 8000), (32, 8000), (64, 24_000)]
LOADS += [(128, 24_000), (300, 100_000)]


def decided(verbs: list[Verb]) -> Strategy:
    """The strategy that these verbs carry out."""
    advice, retained = verbs[0], verbs[1]
    assert isinstance(advice, AdviseContext) and isinstance(retained, RetainContext)
    if retained.retention is Retention.SWAP:
        return Strategy.SWAP
    return Strategy.DISCARD if advice.pause_s == LONG_S else Strategy.PRESERVE


def test_a_prediction_is_the_decision_at_the_pause() -> None:
    """At each of 567 points. With an idle engine it differs at 121 of them. Each of the
    three strategies is chosen at some."""
    found = []
    for size, pause_s, (running, held) in product(SIZES, PAUSES_S, LOADS):
        paused = PausedContexts()
        paused.engines.add("e", 4000, COSTS)
        paused.saw([EngineLoad(name="e", model="m", running=running, held=held)], 0.0)
        need = paused.engines.need("m", size - 10, 10, pause_s, 50)
        one = PausedContext("e", "c", size, "t", ("look",), pause_s, 0.0, Load(running, held))
        assert need is not None and need.strategy is decided(paused.begin(one, True))
        found.append(need.strategy)
    assert len(found) == 567
    assert {one: found.count(one) for one in Strategy} == {
        Strategy.PRESERVE: 247,
        Strategy.SWAP: 217,
        Strategy.DISCARD: 103,
    }


def busy(engine: str, model: str) -> EngineLoad:
    return EngineLoad(name=engine, model=model, running=64, held=24_000)


def test_the_first_engine_of_a_model_stands_for_all() -> None:
    """An engine of another model or without measured costs says nothing. Before any load is known
    the engine counts as idle."""
    paused = PausedContexts()
    assert paused.engines.need("m", 500, 12, 1.0, 0) is None
    paused.engines.add("plain", 4000, None)
    paused.engines.add("e", 4000, replace(COSTS, host_tokens=0))
    idle = paused.engines.need("m", 500, 12, 1.0, 7)
    assert idle == MemoryNeed(
        12,
        COSTS.step_s,
        held=500,
        pause_s=1.0,
        strategy=Strategy.DISCARD,
        later=7,
        again_s=4.08e-5 + 0.01692 / 384,
        copy_s=1.8e-5,
    )
    paused.saw([busy("plain", "m"), busy("e", "n")], 0.0)
    assert paused.engines.need("m", 500, 12, 1.0, 7) == idle
    paused.engines.add("f", 4000, COSTS)
    paused.saw([busy("e", "m"), EngineLoad(name="f", model="m")], 0.0)
    later = paused.engines.need("m", 500, 12, 1.0, 0)
    assert later is not None and later.strategy is Strategy.PRESERVE
    paused.lose("e")
    assert paused.engines.need("m", 500, 12, 1.0, 0) != later


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.PRESERVE, 0.02 * (100 * 10 + 55) + 110 * 3.0 + 1e-3 * (110 * 20 + 210)),
        (Strategy.DISCARD, 0.02 * (100 * 10 + 55) + 1e-3 * 110 * 111 / 2 + 1e-3 * (110 * 20 + 210)),
        (Strategy.SWAP, 0.02 * (100 * 10 + 55) + 2 * 1e-4 * 110**2 + 1e-3 * (110 * 20 + 210)),
    ],
)
def test_coming_back_has_its_cost(strategy: Strategy, expected: float) -> None:
    """100 tokens grow by 10, pause, come back, and grow by 20."""
    need = MemoryNeed(
        10, 0.02, held=100, pause_s=3.0, strategy=strategy, later=20, again_s=1e-3, copy_s=1e-4
    )
    assert token_seconds(need) == pytest.approx(expected)


def test_a_call_is_expected_to_call_the_tool_that_was_called_last() -> None:
    """Of its application, else of its kind: with that tool's pauses and results. An application
    of another kind has the pause of any session, and a result of a token."""
    memory = (made := World()).memory
    memory.has_pool("e", 1000, costs=COSTS)
    made.tools = {**dict.fromkeys("pq", ("look",)), "w": ("walk",)}
    pause(made, "a", "p", 100, 0.0)  # until 0 s, with 110 tokens
    memory.queued(make_op("a", "q", 160), "m", True, 31.0)
    memory.paused("e", PrimitiveId("a", "q"), make_op("a", "q", 160), make_usage(160), 32.0)
    pause(made, "d", "w", 110, 33.0)
    contexts = memory.paused_contexts
    look_s, walk_s = (contexts.expect("", (tool,)) for tool in ("look", "walk"))
    assert look_s is not None and walk_s is not None and look_s > walk_s
    assert contexts.results.expect("", ("look",)) == 50.0
    for name, size, want_s, later in (
        ("a", 220, look_s, 50),
        ("b", 100, walk_s, round(UNKNOWN_TOKENS)),
        ("c", 600, UNKNOWN_PAUSE_S, 1),
    ):
        op = make_op(name, "next", size)
        memory.queued(op, "m", True, 40.0)
        need = contexts.engines.need("m", size, 10, want_s, later)
        [one] = [one for one in memory._applications if one.id == name]
        assert need is not None and one.newest.need == token_seconds(need)


def test_a_prediction_knows_what_runs() -> None:
    """While a call of 4,000 tokens is computed, one of 500 tokens is expected to stay for a second.
    On an idle engine it would be computed again."""

    async def main(loop: VirtualLoop) -> tuple[Strategy, ...]:
        config = SimulatedConfig(tools=("look",))
        async with world(loop, config) as made:
            contexts = made.driver.dispatcher.memory.paused_contexts
            session = made.driver.open("t")
            long = asyncio.create_task(made.ask(session, chatting("w1 " * 4000, "x", "look", 40)))
            await asyncio.sleep(0.5)
            idle = contexts.engines.need("simulated", 500, 12, 1.0, 0)
            await made.ask(session, chatting("w2 ", "y", "look", 2))
            beside = contexts.engines.need("simulated", 500, 12, 1.0, 0)
            await long
            assert idle is not None and beside is not None
            return idle.strategy, beside.strategy

    assert run(main) == (Strategy.DISCARD, Strategy.PRESERVE)


def test_results_are_learned_by_tool_and_tenant() -> None:
    """Of two tools together each is taken to be off by the same factor. Few are remembered."""
    results = ToolResults()
    assert results.expect("a", ("look", "walk")) == 2 * UNKNOWN_TOKENS
    results.learn("a", ("look",), 300)
    results.learn("a", ("walk",), 100)
    results.learn("a", ("look", "walk"), 800)
    assert results.expect("a", ("look",)) == pytest.approx(300 + 0.2 * 300)
    assert results.expect("a", ("walk",)) == pytest.approx(100 + 0.2 * 100)
    assert results.expect("b", ("look",)) == UNKNOWN_TOKENS
    results.learn("a", (), 50)
    for number in range(MOST_TOOLS + 5):
        results.learn("a", (f"tool{number}",), 1)
    assert len(results._tools) == MOST_TOOLS


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=40))
def test_an_expected_result_lies_among_those_seen(seen: list[int]) -> None:
    """And is a token at least."""
    results = ToolResults()
    for tokens in seen:
        results.learn("t", ("look",), tokens)
    assert max(1.0, min(seen)) <= results.expect("t", ("look",)) * (1 + 1e-9)
    assert results.expect("t", ("look",)) <= max(1.0, *seen) * (1 + 1e-9)
