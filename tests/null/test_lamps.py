"""LAMPS's example in units of time, and the simulation of its workload, with exact values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulator.lamps.lengths import exactness
from bench.simulator.lamps.policies import POLICIES
from bench.simulator.lamps.replay import Arrivals, replay
from bench.simulator.lamps.trace import MOST_TOKENS, Agent, Turn, drawn, read
from bench.simulator.lamps.unit_time import (
    FIGURE_3,
    FIGURE_3_MEMORY,
    KEYS,
    Request,
    Running,
    memory_time,
    schedule,
)
from weftline_server.schedule.memory.waste import Strategy


@pytest.mark.parametrize(
    ("policy", "timeline", "ends"),
    [
        ("FCFS", "111112.133.3.22", (8, 15, 12)),
        ("SJF", "233131111..122", (12, 14, 5)),
        ("SJF-total", "331311112.1.....22", (11, 18, 4)),
        ("LAMPS", "332311111..122", (12, 14, 4)),
        ("token-seconds", "23313111221..1", (14, 10, 5)),
    ],
)
def test_figure_3_unit_by_unit(policy: str, timeline: str, ends: tuple[int, ...]) -> None:
    """The paper's means are 11 2/3, 10 1/3, 11 and 10. Token-seconds reach 9 2/3."""
    found = schedule(FIGURE_3, FIGURE_3_MEMORY, KEYS[policy])
    assert (found.timeline, found.ends) == (timeline, ends)


def test_the_memory_of_the_three_requests_over_time() -> None:
    """The tokens that each holds, summed over its units."""
    assert [memory_time(Running(one)) for one in FIGURE_3] == [31, 4, 6]


requests = st.builds(
    lambda before, after, pause, strategy: (before, before + after, pause, strategy),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(Strategy),
)


@settings(max_examples=60)
@given(
    st.lists(requests, min_size=1, max_size=5).filter(
        lambda all: sum(r[3] is Strategy.PRESERVE for r in all) <= 1
    ),
    st.sampled_from(sorted(set(KEYS) - {"LAMPS"})),
)
def test_every_schedule_ends_and_computes_each_token(
    some: list[tuple[int, int, int, Strategy]], policy: str
) -> None:
    """Each request runs for its tokens, and again for those that were discarded. With enough memory
    for all there is no other idle unit than one in which all are in their pauses."""
    made = [
        Request(n + 1, length, before, pause, strategy)
        for n, (before, length, pause, strategy) in enumerate(some)
    ]
    found = schedule(made, 100, KEYS[policy])
    for one in made:
        again = one.before if one.strategy is Strategy.DISCARD else 0
        assert found.timeline.count(str(one.id)) == one.length + again
    assert max(found.ends) == len(found.timeline)
    assert found.timeline.count(".") <= sum(one.pause for one in made)


def test_a_trace_file_has_the_turns_of_its_segments(tmp_path: Path) -> None:
    """In either form. The last turn has no tool, whatever its segment says."""
    first = {"prompt_tokens": 40, "completion_tokens": 9, "api_time": 0.5, "return_tokens": 7}
    last = {"prompt_tokens": 56, "completion_tokens": 5}
    segments = [{**first, "api_kind": "look"}, last]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"requests": [{"class": "qa", "segments": segments}]}))
    turns = (Turn(9, "look", 0.5, 7), Turn(5))
    assert read(file) == [Agent("qa", 40, turns)]
    first = {"prompt_tokens": 40, "completion_tokens": 9, "api_time": 0.5, "api_token_length": 7}
    plain = [first, last]
    file.write_text(json.dumps({"r1": plain}))
    assert read(file) == [Agent("", 40, (Turn(9, "tool", 0.5, 7), Turn(5)))]


def test_the_mix_is_that_of_the_published_figures() -> None:
    """Requests stay within the papers' limit, and every class is there."""
    some = [drawn(seed) for seed in range(300)]
    assert drawn(7) == drawn(7)
    assert {one.kind for one in some} == {"math", "chatbot", "qa", "tts", "ve", "image"}
    for one in some:
        tokens = one.prompt + sum(turn.output + turn.returned for turn in one.turns)
        assert tokens <= MOST_TOKENS and not one.turns[-1].tool
    chats = [turn.pause_s for one in some if one.kind == "chatbot" for turn in one.turns[:-1]]
    assert sum(chats) / len(chats) == pytest.approx(28.6, rel=0.15)


# One agent that pauses for a minute, and eight that need the room meanwhile.
CROWD = [Agent("slow", 300, (Turn(20, "walk", 60.0, 10), Turn(20)))] + [
    Agent("fast", 300 + n, (Turn(20, "clock", 0.01, 10), Turn(20))) for n in range(8)
]


def test_lengths_are_foretold_by_what_came_before() -> None:
    """The third output of a class is the first that is foretold, by the mean of those before."""
    turns = (Turn(10, "clock", 0.1, 5), Turn(20, "clock", 0.1, 5), Turn(30, "clock", 0.1, 5))
    agents = [Agent("math", 40, (*turns, Turn(40))), Agent("qa", 40, (Turn(9),))]
    found = exactness(agents)
    # 10, 20 and 30 foretell 20, and 40 came. Nothing foretells the first outputs of a class.
    assert (found.count, found.acc_5, found.acc_15, found.mean_error) == (1, 0.0, 0.0, 20.0)
    usual = exactness([drawn(seed) for seed in range(200)])
    assert usual.count > 900 and usual.acc_5 < usual.acc_15 and usual.mean_error < 120


@pytest.mark.parametrize("policy", ["discard", "preserve", "InferCept", "LAMPS", "app"])
def test_every_request_ends_though_all_contexts_are_paused(policy: str) -> None:
    """The pool holds two contexts. Each policy gets every request through, and the one that keeps
    all contexts gives some up where nothing else could run."""
    load = Arrivals(agents=CROWD, rate=20.0, window_s=1.5)
    found = replay(load, POLICIES.get(policy), 800)
    assert len(found.ended) == len(load.arrivals())
    assert all(one.seconds > one.paused_s for one in found.ended)


def test_what_is_discarded_is_computed_again_and_nothing_else() -> None:
    """One agent alone. Its second prompt is computed again if it was discarded: 319 tokens.
    Preserved, only the result of the tool and the last token are new."""
    agent = [CROWD[0]]
    load = Arrivals(agents=agent, rate=0.5, window_s=0.1)
    again = {}
    for policy in ("discard", "preserve"):
        again[policy] = replay(load, POLICIES[policy], 4096).again
    assert again["preserve"] < 2 / 312
    assert again["discard"] == pytest.approx(319 / (300 + 330))
    # The prompt of the server also has the list of tools.
    assert replay(load, None, 4096).again < 0.15
