"""Applications that wait for room are ordered by the token-seconds of their calls, or by size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null.test_memory import World, app, make_op, names
from weftline_engine.api import KvCosts, SamplingParams
from weftline_server.schedule.memory.admission import ModelPool, admit
from weftline_server.schedule.memory.rank import MemoryNeed, token_seconds
from weftline_server.schedule.memory.waste import Strategy

COSTS = KvCosts(step_s=0.02, fill_s=1e-4, chunk=512)
FULL = ModelPool(tokens=1000, recomputed=0.0, busy=1.0)


@pytest.mark.parametrize(
    ("off", "pool", "later_s", "first"),
    [
        ((), COSTS, 2.9, "short"),
        ((), COSTS, 22.0, "long"),
        (("memory_rank",), COSTS, 2.9, "long"),
        ((), None, 2.9, "long"),
    ],
)
def test_what_holds_its_room_for_a_short_time_goes_first(
    off: tuple[str, ...], pool: KvCosts | None, later_s: float, first: str
) -> None:
    """A prompt of 800 tokens with two more is held for a moment, one of 200 with 400 more for eight
    seconds. Without the rank, or without measured costs, the size decides.
    """
    world = World(*off)
    world.memory.has_pool("e", 900, costs=pool)
    for name, size, output, now in (("long", 200, 400, 10.0), ("short", 800, 2, 10.0 + later_s)):
        op = make_op(name, name, size)
        op = replace(op, sampling=SamplingParams(max_tokens=output))
        world.memory.queued(op, "m", True, now)
    world.memory.gate.use("m").busy.note(1.0, 0.0)
    world.memory.gate.admit("m", 900, 40.0)
    assert [world.memory.gate.is_admitted(name) for name in ("short", "long")] == [
        first == "short",
        first == "long",
    ]


def test_token_seconds_count_within_bounds() -> None:
    """What holds the whole cache for an hour goes before the least that comes 30 s later."""
    long, short = app("long", 0.0, 900, 900), app("short", 30.1, 900, 900)
    long.newest.need, short.newest.need = 3e6, 0.01
    assert names(admit([short, long], [], FULL, 31.0).enter) == ["long"]
    short.since = 29.9
    assert names(admit([short, long], [], FULL, 31.0).enter) == ["short"]


@pytest.mark.parametrize(("later_s", "first"), [(3.9, "small"), (4.1, "large")])
def test_a_smaller_one_goes_first_if_it_came_soon_after(later_s: float, first: str) -> None:
    """Two seconds count as much as twice the tokens: 200 tokens go before 800 that came 4 s
    before. What counts is since when they wait, and not when they came first."""
    large, small = app("large", 50.0, 800, 800), app("small", 0.0, 200, 200)
    large.since, small.since = 10.0, 10.0 + later_s
    full = replace(FULL, tokens=900)
    assert names(admit([small, large], [], full, 60.0).enter) == [first]


def test_nothing_is_overtaken_for_ever() -> None:
    """Sizes count within bounds: the largest goes before the smallest that comes 20 s later."""
    large, small = app("large", 0.0, 900_000, 900_000), app("small", 20.5, 1, 1)
    full = replace(FULL, tokens=1_000_000)
    assert names(admit([small, large], [], full, 21.0).enter)[0] == "large"


@pytest.mark.parametrize(
    ("length", "before", "pause", "strategy", "held"),
    [(6, 5, 2, Strategy.PRESERVE, 31), (2, 1, 7, Strategy.DISCARD, 4), (3, 2, 1, Strategy.SWAP, 6)],
)
def test_the_token_seconds_of_lamps_figure_3(
    length: int, before: int, pause: int, strategy: Strategy, held: int
) -> None:
    """The tokens that each of its requests holds, summed over its units: `length` tokens with a
    pause after the first `before` of them.
    """
    need = MemoryNeed(
        tokens=before,
        token_s=1.0,
        pause_s=pause,
        strategy=strategy,
        later=length - before,
        again_s=1.0,
    )
    assert token_seconds(need) == held
