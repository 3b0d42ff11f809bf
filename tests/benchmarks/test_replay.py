"""Recorded sessions are read, written as words, replayed, and compared with Belady's optimum."""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay import production
from bench.replay.belady import Access, Tree, computed
from bench.replay.gates import HALF_S, Thunder
from bench.replay.retention import HISTORY, Continuum, FixedTtl
from bench.replay.trace import Recorded, Turn, drawn, read
from bench.replay.words import Conversation
from weftline.errors import InvalidRequest
from weftline_engine.pretend.simulation import SimulatedConfig


def write(folder: Path, value: object) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps(value))
    return path


def test_rows_of_numbers_are_read(tmp_path: Path) -> None:
    """A trace of bare rows gives turns with their shared tokens, pauses and agents."""
    rows = [[0.0, 0, 700, 10, 0, 7.3, 0.0, 1], [19.0, 2, 720, 20, 640, 9.2, 12.0, 0]]
    found = read(write(tmp_path, {"sessions": [{"id": "a", "requests": rows}]}))
    first = Turn(input=700, output=10, agent="0")
    second = Turn(input=720, output=20, shared=640, think_s=12.0, agent="2")
    assert found == [Recorded("a", (first, second))]
    assert found[0].largest == 740


@pytest.mark.parametrize("value", [7, {"sessions": [{"id": "a", "requests": [[1]]}]}, {}])
def test_what_is_no_trace_is_refused(tmp_path: Path, value: object) -> None:
    """A number, a row that is too short and an empty object each end with a sentence."""
    with pytest.raises(InvalidRequest, match="is no trace that we read"):
        read(write(tmp_path, value))


def test_all_lengths_and_times_are_scaled_alike() -> None:
    """A 64th of everything, and an output keeps at least one token."""
    turn = Turn(input=6400, output=20, shared=3200, think_s=64.0)
    (found,) = Recorded("a", (turn,)).scaled(1 / 64).turns
    assert found == Turn(input=100, output=1, shared=50, think_s=1.0)


def test_drawn_sessions_are_like_real_ones() -> None:
    """The same ones each time. Most tokens are shared, and a request shares what came before."""
    found = drawn(40)
    assert found == drawn(40) and found != drawn(40, seed=1)
    turns = [turn for one in found for turn in one.turns]
    shared = sum(turn.shared for turn in turns) / sum(turn.input for turn in turns)
    assert 0.93 < shared < 0.99
    assert all(turn.shared < turn.input for turn in turns)


def test_prompts_share_what_was_shared() -> None:
    """With the newest context of its own agent, and nothing with another session."""
    talk, other = Conversation("a"), Conversation("b")
    first, below = Turn(input=10, output=2), Turn(input=8, output=1, agent="x")
    mine, theirs = talk.prompt(first), talk.prompt(below)
    talk.answered(first, mine, [1, 2])
    talk.answered(below, theirs, [3])
    third = talk.prompt(Turn(input=20, output=1, shared=11))
    assert third[:11] == [*mine, 1] and len(third) == 20
    fourth = talk.prompt(Turn(input=9, output=1, shared=6, agent="x"))
    assert fourth[:6] == theirs[:6] and len(fourth) == 9
    assert other.prompt(first) != mine


def accesses(*texts: str) -> list[Access]:
    tree = Tree()
    return [Access(tree.path([*map(ord, text)]), len(text)) for text in texts]


def test_the_optimum_evicts_what_is_needed_last() -> None:
    """With room for five letters. LRU would evict `ab`, which is needed before `cd`."""
    found = accesses("abx", "cd", "ef", "aby", "cd")
    assert computed(found, math.inf) == 3 + 2 + 2 + 1 + 1
    assert computed(found, 5) == 3 + 2 + 2 + 1 + 1
    assert computed(found, 2) == 3 + 2 + 2 + 1 + 2
    assert computed(found, 0) == 3 + 2 + 2 + 3 + 2


def lru(found: list[Access], capacity: int) -> int:
    """The same with the letter evicted that was used longest ago, the last of a context first."""
    cached: OrderedDict[int, None] = OrderedDict()
    total = 0
    for access in found:
        hits = 0
        for one in access.path[: access.prompt - 1]:
            if one not in cached:
                break
            hits += 1
        total += access.prompt - hits
        for one in reversed(access.path):
            cached[one] = None
            cached.move_to_end(one)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return total


@given(st.lists(st.text("ab", min_size=1, max_size=8), max_size=24), st.integers(0, 24))
@settings(max_examples=150)
def test_the_optimum_is_between_no_eviction_and_lru(texts: list[str], room: int) -> None:
    """Belady's choice computes at most as many tokens as LRU."""
    found = accesses(*texts)
    assert computed(found, math.inf) <= computed(found, room) <= lru(found, room)


def test_continuum_pins_for_the_best_of_its_pauses() -> None:
    """Of 101 pauses 61 last 1 s and 40 last 10 s. With a benefit of 5 s it pins for 1 s: 0.6 of 5 s
    for 1 s. With 30 s it pins for 10 s. Before that it assumes pauses of a second: ln 5.
    """
    rule = Continuum()
    assert rule.seconds(5.0) == math.log(5.0) and rule.seconds(0.5) == 0.0
    for pause_s, count in ((10.0, 40), (1.0, 61)):
        for _ in range(count):
            rule.resumed(pause_s)
    assert HISTORY < 40 + 61
    assert [rule.seconds(reload_s) for reload_s in (1.0, 5.0, 30.0)] == [0.0, 1.0, 10.0]


def test_continuum_counts_the_wait_as_far_as_the_past_tells_the_future() -> None:
    """All sessions have four requests: the more are past, the fewer come, so a wait counts whole.
    Sessions of one and of nine requests tell nothing that certain.
    """
    rule, other = Continuum(), Continuum()
    for one, turns in ((rule, (4, 4)), (other, (1, 9, 1, 9))):
        one.waited(math.e**2)
        for count in turns:
            one.ended(count)
    assert rule.seconds(0.0) == pytest.approx(2.0)
    assert other.seconds(0.0) < 1.9
    assert FixedTtl().seconds(100.0) == 2.0


async def test_the_gate_pauses_the_smallest_programs() -> None:
    """Three programs grow beyond a cache of 100. The smallest waits until a tool's time has halved
    the weight of another one.
    """
    now = [0.0]
    gate = Thunder(100, lambda: now[0])
    for name in "abc":
        await gate.request(name, 30)
    for name, tokens in (("a", 40), ("b", 50), ("c", 20)):
        await gate.request(name, tokens)
    gate.poll()
    waiting = asyncio.ensure_future(gate.request("c", 20))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.responded("b")
    now[0] = HALF_S
    gate.poll()
    await waiting


CUT = [Recorded(one.id, one.turns[:12]).scaled(1 / 256) for one in drawn(8)]
NEEDED = sum(one.largest for one in CUT)


def test_sessions_are_replayed_on_a_simulated_engine() -> None:
    """Where the cache holds all, nothing is computed twice. Under pressure our policy computes less
    again than LRU, and ends sooner than every other system. No system beats the bound.
    """
    config = SimulatedConfig()
    wide = production.replay(CUT, "weftline", at_once=8, pool=2 * NEEDED, config=config)
    least, best = wide.optimum()
    assert wide.computed == least == best and len(wide.lasted) == 8
    rates, optima = {}, []
    for name in production.SYSTEMS:
        found = production.replay(CUT, name, at_once=8, pool=NEEDED // 4, config=config)
        least, best = found.optimum()
        assert len(found.lasted) == 8 and found.computed >= best >= least
        rates[name] = found.rate
        optima.append(best)
    most = production.bound(CUT, at_once=8, config=config, more=min(optima) / least)
    assert max(rates, key=lambda name: rates[name]) == "weftline"
    assert rates["weftline"] < most
