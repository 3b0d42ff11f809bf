"""Recorded sessions are read, written as words, replayed, and compared with Belady's optimum."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay import endpoint, simulated
from bench.replay.belady import Access, Tree, computed
from bench.replay.trace import Recorded, Turn, read, synthetic
from bench.replay.words import Conversation
from tests.null.asgi import Serve
from tests.null.test_words_engine import words_engine
from weftline import AsyncClient
from weftline.errors import InvalidRequest
from weftline_engine.simulated import SimulatedConfig


def write(folder: Path, name: str, *values: object) -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(one) for one in values))
    return path


def test_rows_of_numbers_are_read(tmp_path: Path) -> None:
    """A trace of bare rows gives turns with their shared tokens, pauses and agents."""
    rows = [[0.0, 0, 700, 10, 0, 7.3, 0.0, 1], [19.0, 2, 720, 20, 640, 9.2, 12.0, 0]]
    found = read(write(tmp_path, "t.json", {"sessions": [{"id": "a", "requests": rows}]}))
    first = Turn(input=700, output=10, agent="0")
    second = Turn(input=720, output=20, shared=640, think_s=12.0, agent="2")
    assert found == [Recorded("a", (first, second))]


def test_a_folder_of_sessions_with_agents_below_is_read(tmp_path: Path) -> None:
    """The requests of an agent below stand where they came. Its first shares nothing."""
    below = {"t": 0.5, "type": "n", "in": 100, "out": 5, "hash_ids": [9, 8], "think_time": 0.2}
    requests = [
        {"t": 0.0, "type": "n", "in": 150, "out": 5, "hash_ids": [1, 2, 3], "think_time": 0.0},
        {"t": 9.0, "type": "n", "in": 200, "out": 7, "hash_ids": [1, 2, 4], "think_time": 3.0},
        {"t": 1.0, "type": "subagent", "agent_id": "x", "requests": [below]},
    ]
    write(tmp_path, "trace_0001.json", {"block_size": 64, "requests": requests})
    (found,) = read(tmp_path)
    assert found.id == "trace_0001" and found.largest == 207
    assert [(one.input, one.shared, one.agent) for one in found.turns] == [
        (150, 0, ""),
        (100, 0, "x"),
        (200, 128, ""),
    ]


def test_lines_of_requests_are_read(tmp_path: Path) -> None:
    """A session's lines follow each other. A delay is in milliseconds, a block 512 tokens."""
    lines = [
        {"session_id": "s", "input_length": 600, "output_length": 9, "hash_ids": [1, 2]},
        {"input_length": 10, "output_length": 1, "hash_ids": [7]},
        {"session_id": "s", "input_length": 900, "hash_ids": [1, 3], "delay": 2500},
    ]
    found = read(write(tmp_path, "t.jsonl", *lines))
    assert [(one.id, len(one.turns)) for one in found] == [("s", 2), ("line 2", 1)]
    assert found[0].turns[1] == Turn(input=900, output=1, shared=512, think_s=2.5)


@pytest.mark.parametrize("value", [7, {"sessions": [{"id": "a", "requests": [[1]]}]}, {}])
def test_what_is_no_trace_is_refused(tmp_path: Path, value: object) -> None:
    """A number, a row that is too short and an empty object each end with a sentence."""
    with pytest.raises(InvalidRequest, match="is no trace that we read"):
        read(write(tmp_path, "t.json", value))


def test_all_lengths_and_times_are_scaled_alike() -> None:
    """A 64th of everything, and an output keeps at least one token."""
    turn = Turn(input=6400, output=20, shared=3200, think_s=64.0)
    (found,) = Recorded("a", (turn,)).scaled(1 / 64).turns
    assert found == Turn(input=100, output=1, shared=50, think_s=1.0)


def test_drawn_sessions_are_like_real_ones() -> None:
    """The same ones each time. Most tokens are shared, and a request shares what came before."""
    found = synthetic(40)
    assert found == synthetic(40) and found != synthetic(40, seed=1)
    turns = [turn for one in found for turn in one.turns]
    shared = sum(turn.shared for turn in turns) / sum(turn.input for turn in turns)
    assert 0.93 < shared < 0.99
    assert all(turn.shared < turn.input for turn in turns)


def test_prompts_share_what_was_shared() -> None:
    """With the newest context of its own agent, and nothing with another session."""
    talk, other = Conversation("a"), Conversation("b")
    first, below = Turn(input=10, output=2), Turn(input=8, output=1, agent="x")
    mine, theirs = talk.prompt(first), talk.prompt(below)
    talk.answered(first, mine, ["w1", "w2"])
    talk.answered(below, theirs, ["w3"])
    third = talk.prompt(Turn(input=20, output=1, shared=11))
    assert third[:11] == [*mine, "w1"] and len(third) == 20
    fourth = talk.prompt(Turn(input=9, output=1, shared=6, agent="x"))
    assert fourth[:6] == theirs[:6] and len(fourth) == 9
    assert other.prompt(first) != mine


def accesses(*texts: str) -> list[Access]:
    tree = Tree()
    return [Access(tree.path(text.split()), len(text.split())) for text in texts]


def test_the_optimum_evicts_what_is_needed_last() -> None:
    """With room for five words. LRU would evict `a b`, which is needed before `c d`."""
    found = accesses("a b x", "c d", "e f", "a b y", "c d")
    assert computed(found, math.inf) == 3 + 2 + 2 + 1 + 1
    assert computed(found, 5) == 3 + 2 + 2 + 1 + 1
    assert computed(found, 4) == 3 + 2 + 2 + 1 + 1
    assert computed(found, 2) == 3 + 2 + 2 + 1 + 2
    assert computed(found, 0) == 3 + 2 + 2 + 3 + 2


def test_an_answer_is_in_the_cache() -> None:
    """The next prompt repeats it."""
    tree = Tree()
    first = Access(tree.path(["a", "b", "c", "d"]), 2)
    second = Access(tree.path(["a", "b", "c", "d", "e", "f"]), 6)
    assert computed([first, second], math.inf) == 2 + 2
    assert computed([first, second], 3) == 2 + 3


def lru(found: list[Access], capacity: int) -> int:
    """The same with the word evicted that was used longest ago, the last of a context first."""
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


@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=8).map(" ".join), max_size=24),
    st.integers(0, 24),
)
@settings(max_examples=150, deadline=None)
def test_the_optimum_is_between_no_eviction_and_lru(texts: list[str], room: int) -> None:
    """Belady's choice computes at most as many tokens as LRU."""
    found = accesses(*texts)
    assert computed(found, math.inf) <= computed(found, room) <= lru(found, room)


def test_sessions_are_replayed_on_a_simulated_engine() -> None:
    """Where the cache holds all, nothing is computed twice. Under pressure our policy computes less
    again than LRU, and ends sooner."""
    sessions = [one.scaled(1 / 256) for one in synthetic(8)]
    cut = [Recorded(one.id, one.turns[:12]) for one in sessions]
    needed = sum(one.largest for one in cut)
    config = SimulatedConfig()
    wide = simulated.replay(cut, "weftline", at_once=8, pool=2 * needed, config=config)
    assert wide.row["computed_to_belady"] == 1.0 and wide.row["recomputed"] == 0
    assert len(wide.lasted) == 8
    assert sum(one.prompt for _, one in wide.accesses) == wide.prompts
    ours, plain = (
        simulated.replay(cut, name, at_once=8, pool=needed // 4, config=config).row
        for name in ("weftline", "LRU")
    )
    assert wide.row["recomputed_to_belady"] is None  # the optimum computes nothing again
    assert 1.0 <= ours["computed_to_belady"] < plain["computed_to_belady"]
    assert ours["sessions_per_minute"] > plain["sessions_per_minute"]


async def test_sessions_are_replayed_on_a_server(serve: Serve) -> None:
    """As OpenAI's completions and as calls of sessions: the same prompts, and the server counts the
    same cached tokens."""
    server = await serve(also={"words": words_engine(kv_tokens=4096)})
    turns = [Turn(input=40, output=3), Turn(input=80, output=2, shared=42)]
    sessions = [Recorded(name, tuple(turns)) for name in ("a", "b")]
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t/v1") as http:

        async def plain(session: str) -> endpoint.Client:
            return endpoint.OpenAIClient(http, "words", session)

        found = await endpoint.replay(sessions, plain, at_once=2)
    async with AsyncClient("http://t", transport=httpx.ASGITransport(server.app)) as client:

        async def graph(session: str) -> endpoint.Client:
            return endpoint.GraphClient(await client.session().open(), "words")

        other = [Recorded(f"other {one.id}", one.turns) for one in sessions]
        ours = await endpoint.replay(other, graph, at_once=2)
    for one in (found, ours):
        assert one.counts == endpoint.Counts(2 * (40 + 80), 2 * 42)
        assert len(one.answers_s) == 4 and one.row["cached_share"] == 0.35
