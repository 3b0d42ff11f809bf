"""The bound beside a ratio: what is left without round trips and recomputation, from given runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.harness.bound import bound, depth
from bench.harness.metrics import apps_per_minute, mean_seconds
from bench.harness.results import rows
from bench.harness.runs import Run
from bench.harness.stage import App, Call
from bench.harness.workload import load

MEAN = mean_seconds()


def call(start: float, seconds: float, prompt: int = 100, cached: int | None = 0) -> Call:
    return Call("call", start, seconds, prompt, 10, cached=cached)


def run(
    apps: Sequence[tuple[float, Sequence[Call]]], *, delay_ms: int = 0, fill_s: float = 0.0
) -> Run:
    """A run of applications that start at once, with their seconds and calls."""
    return Run(
        system="one",
        point="first",
        x=0,
        delay_ms=delay_ms,
        repeat=0,
        apps=[App("chain", 0.0, seconds, calls=list(calls), counted=1) for seconds, calls in apps],
        client_cpu_s=0.0,
        server_cpu_s=0.0,
        others_cpu_s=0.0,
        phases_s={"fill": fill_s},
    )


CHAIN = [(1.75, (call(0.0, 0.5), call(0.625, 0.5), call(1.25, 0.5)))]
OURS = run([(1.0, (call(0.0, 0.3), call(0.3, 0.3), call(0.6, 0.3)))])


def test_a_chain_keeps_its_calls_and_one_round_trip() -> None:
    """Three calls of 0.5 s, of which 0.25 are a round trip, and 0.125 s of the client between two.
    Two round trips and the client's time can go: 1 s of 1.75 s stays."""
    assert bound(MEAN, run(CHAIN, delay_ms=250), [OURS], visits=False) == 1.75
    assert bound(MEAN, run(CHAIN), [OURS], visits=False) == 1.75 / 1.5


def test_what_visits_the_client_keeps_its_round_trips() -> None:
    """An agent's tools run in the client. So nothing of its time can go."""
    assert bound(MEAN, run(CHAIN, delay_ms=250), [OURS], visits=True) == 1.0


def test_a_lone_call_has_nothing_to_gain() -> None:
    """Its one round trip stays."""
    lone = run([(0.5, (call(0.0, 0.5),))], delay_ms=250)
    assert bound(MEAN, lone, [run([(0.4, (call(0.0, 0.4),))])], visits=False) == 1.0


def test_tokens_that_the_best_had_cached_can_go() -> None:
    """Two agents compute 200 tokens each, in 4 s. The server computes 100 for each, in 2 s of
    filling: 200 tokens less are 2 s less."""
    theirs = run([(4.0, (call(0.0, 1.0), call(3.0, 1.0)))] * 2)
    ours = run([(3.0, (call(0.0, 1.0), call(2.0, 1.0, cached=100)))] * 2, fill_s=2.0)
    assert bound(apps_per_minute(), theirs, [ours], visits=True) == 2.0
    # More than half of the 4 s would say that steps were counted for each of their calls.
    shared = replace(ours, phases_s={"fill": 2.5})
    assert bound(apps_per_minute(), theirs, [shared], visits=True) is None
    # The better of our ways counts. The other computed 400 tokens in 8 s.
    slower = replace(theirs, phases_s={"fill": 8.0})
    assert bound(apps_per_minute(), theirs, [slower, ours], visits=True) == 2.0
    # A server that does not tell its cached tokens says nothing of what must be computed.
    untold = run([(3.0, (call(0.0, 1.0, cached=None), call(2.0, 1.0)))] * 2)
    assert bound(apps_per_minute(), theirs, [untold], visits=True) is None


def test_a_program_that_waits_without_need_has_no_bound() -> None:
    """The server runs three parts at once, which the client asks for one by one."""
    ours = run([(0.5, [call(0.0, 0.5)] * 3)])
    assert bound(MEAN, run(CHAIN), [ours], visits=False) is None


def test_without_calls_there_is_no_bound() -> None:
    """Later repetitions do not keep them."""
    assert bound(MEAN, run([(1.0, ())]), [OURS], visits=False) is None
    assert bound(MEAN, run(CHAIN), [], visits=False) is None


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([call(0.0, 1.0), call(0.0, 1.0), call(1.0, 1.0)], 2),  # a map and its join
        ([call(0.0, 1.0), call(0.95, 1.0)], 2),  # by clocks that differ
        ([call(0.0, 1.0), call(0.5, 1.0)], 1),
    ],
)
def test_calls_that_overlap_do_not_follow_one_another(calls: list[Call], found: int) -> None:
    """The depth is that of the longest chain."""
    assert depth(calls) == found


def test_the_bound_stands_in_the_row_of_the_baseline() -> None:
    """Of both our ways on the same engine, in the first repetition. A server with an engine of its
    own is no part of it."""
    theirs = replace(run(CHAIN, delay_ms=250), system="langchain-vllm")
    ours = replace(OURS, system="weftline-vllm", delay_ms=250)
    later = replace(run([(9.0, ())], delay_ms=250), system="langchain-vllm", repeat=1)
    elsewhere = replace(ours, system="weftline")
    found = rows(load("chain_summary"), [later, theirs, ours, elsewhere], "langchain-vllm")
    assert [(one["system"], one.get("bound")) for one in found] == [
        ("langchain-vllm", 1.75),
        ("weftline-vllm", None),
        ("weftline", None),
    ]
    assert not any("bound" in one for one in rows(load("chain_summary"), [theirs], theirs.system))
