"""Which prefixes an engine should hold: by its reports, or by an estimate without reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline_engine.api import Capability, Description, Residency
from weftline_server.schedule.engines.prefix_index import (
    MAX_PREFIXES,
    PrefixEstimate,
    PrefixIndex,
    known_prefixes,
)
from weftline_server.schedule.placement.round_data import common

LONG = (("a", 32), ("a+", 64), ("a++", 128))


def test_a_reporting_engine_gets_the_index_and_others_the_estimate() -> None:
    """It depends on the capability REPORTS."""
    silent: tuple[Any, ...] = tuple(one for one in Capability if one is not Capability.REPORTS)
    reports = (*silent, Capability.REPORTS)
    for capabilities, expected in ((reports, PrefixIndex), (silent, PrefixEstimate)):
        description = Description(model="m", capabilities=capabilities)
        assert type(known_prefixes(description)) is expected


def test_a_prefix_counts_while_it_is_computed_and_while_reported() -> None:
    """On the device or the host, it counts up to the tokens that are left. After a drop it does not
    count.
    """
    index = PrefixIndex()
    index.expect("c", LONG)
    assert common(LONG, index.hashes) == 128
    for residency, tokens, left in (
        (Residency.RESIDENT, 140, 128),
        (Residency.RESIDENT, 100, 64),
        (Residency.HOST, 64, 64),
        (Residency.RESIDENT, 31, 0),
        (Residency.HOST, 140, 128),  # it was computed again and swapped out
        (Residency.DROPPED, 0, 0),
    ):
        index.moved("c", residency, tokens)
        assert common(LONG, index.hashes) == left


def test_a_prefix_counts_while_any_context_has_it() -> None:
    """Losing one of two contexts with the same prefix changes nothing."""
    index = PrefixIndex()
    index.expect("c", LONG)
    index.expect("d", LONG[:2])
    index.moved("c", Residency.DROPPED, 0)
    assert set(index.hashes) == {"a", "a+"}
    index.lost("d")
    assert set(index.hashes) == set()
    index.moved("d", Residency.RESIDENT, 40)  # computed before its call was cancelled
    assert set(index.hashes) == {"a"}
    index.clear()
    index.moved("d", Residency.RESIDENT, 64)
    assert set(index.hashes) == set()


STEPS_OF = ((("a", 256), ("a+", 384), ("a++", 512), ("a+++", 768)), 800)


@pytest.mark.parametrize(
    ("places", "barred", "cached"),
    [
        (None, (), 768),
        ((), ("a", "a+", "a++", "a+++"), 0),
        ((800,), ("a", "a+", "a++"), 768),
        ((416, 800), ("a", "a++"), 768),
        ((416,), ("a",), 384),  # the context ends with it, and the longer ones do not count
    ],
)
def test_a_state_counts_for_the_prefix_before_it(
    places: tuple[int, ...] | None, barred: tuple[str, ...], cached: int
) -> None:
    """A prompt that parts elsewhere finds the blocks, and no state to go on with."""
    prefixes, tokens = STEPS_OF
    index = PrefixIndex()
    index.expect("c", prefixes)
    assert index.barred == set()
    index.moved("c", Residency.RESIDENT, max(places or (tokens,)), places)
    assert index.barred == set(barred)
    assert common(prefixes, index.hashes, index.barred) == cached
    index.expect("running", prefixes[:1])
    assert "a" not in index.barred
    index.lost("running")
    assert index.barred == set(barred)


def test_a_meaning_between_two_prefixes_bars_neither() -> None:
    """A variable's border is counted beside the prefixes, so a state behind it is one for both."""
    index = PrefixIndex()
    index.expect("c", (("a", 256), ("a+", 384), ("meaning", 400), ("a++", 512)))
    index.moved("c", Residency.RESIDENT, 416, (416,))
    assert index.barred == {"a"}


class Model:
    """A plain model of the index: a list of submissions, of which the oldest may be forgotten."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.contexts: list[tuple[str, Sequence[tuple[str, int]], float]] = []
        self.places: dict[str, tuple[int, ...] | None] = {}  # by context

    @property
    def hashes(self) -> set[str]:
        return {
            hash
            for _, prefixes, tokens in self.contexts
            for hash, length in prefixes
            if length <= tokens
        }

    @property
    def barred(self) -> set[str]:
        """Each prefix is twice as long as the one before it."""
        goes_on: set[str] = set()
        for context, prefixes, tokens in self.contexts:
            places = self.places[context]
            known = [one for one in prefixes if one[1] <= tokens]
            for hash, length in known:
                most = 2 * length if hash != known[-1][0] else 1000
                if places is None or any(length <= place < most for place in places):
                    goes_on.add(hash)
        return self.hashes - goes_on

    def expect(self, context: str, prefixes: Sequence[tuple[str, int]]) -> None:
        self.contexts = [one for one in self.contexts if one[0] != context]
        self.contexts += [(context, prefixes, float("inf"))] if prefixes else []
        self.places[context] = None
        self.shrink()

    def moved(self, context: str, tokens: float, places: tuple[int, ...] | None = None) -> None:
        self.places[context] = places
        self.contexts = [
            (id, prefixes, tokens if id == context else before)
            for id, prefixes, before in self.contexts
        ]
        self.shrink()

    def shrink(self) -> None:
        while len(self.contexts) > self.most or len(self.hashes) > self.most:
            settled = [one for one in self.contexts if one[2] != float("inf")]
            if not settled:
                return
            self.contexts.remove(settled[0])


CONTEXTS = st.sampled_from("vwxyz")
PREFIXES = st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.integers(0, 3)).map(
    lambda found: tuple(
        (name, 32 << i)
        for i, name in enumerate((found[0], found[0] + found[1], *"f"))
        if i < found[2]
    )
)
STEPS = st.one_of(
    st.tuples(st.just("expect"), CONTEXTS, PREFIXES),
    st.tuples(st.just("moved"), CONTEXTS, st.sampled_from(Residency), st.integers(0, 200)),
    st.tuples(st.just("kept"), CONTEXTS, st.sets(st.integers(1, 200), max_size=3).map(sorted)),
    st.tuples(st.just("lost"), CONTEXTS),
    st.tuples(st.just("clear")),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 6))
def test_the_index_equals_a_plain_model(steps: list[tuple[Any, ...]], most: int) -> None:
    """It holds for any sequence of submissions, reports and losses, with any bound."""
    index, model = PrefixIndex(most), Model(most)
    for step in steps:
        match step:
            case ("expect", context, prefixes):
                index.expect(context, prefixes)
                model.expect(context, prefixes)
            case ("moved", context, residency, tokens):
                index.moved(context, residency, tokens)
                model.moved(context, 0 if residency is Residency.DROPPED else tokens)
            case ("kept", context, places):
                tokens, told = max(places, default=0), tuple(places)
                index.moved(context, Residency.RESIDENT, tokens, told)
                model.moved(context, tokens, told)
            case ("lost", context):
                index.lost(context)
                model.moved(context, 0)
            case _:
                index.clear()
                model.contexts.clear()
        assert set(index.hashes) == model.hashes
        assert set(index.barred) == model.barred


def test_an_index_is_bounded_except_for_running_prompts() -> None:
    """Of ten thousand resident prompts the last are remembered. No running one is forgotten."""
    index = PrefixIndex()
    index.expect("runs", (("first", 32),))
    for number in range(10_000):
        index.expect(f"c{number}", ((f"h{number}", 32),))
        index.moved(f"c{number}", Residency.RESIDENT, 40)
    assert len(index.hashes) == MAX_PREFIXES
    assert {"first", "h9999"} < set(index.hashes)


def test_the_estimate_drops_the_least_recently_used_prompts_end() -> None:
    """The pool has 300 tokens. Prompts have 128 tokens, of which 64 are a common prefix."""
    guess = PrefixEstimate(300)
    for prefixes, left in (
        ((("a", 64), ("a+", 128)), {"a", "a+"}),
        ((("b", 64), ("b+", 128)), {"a", "a+", "b", "b+"}),
        ((("c", 64),), {"a", "b", "b+", "c"}),
        ((("a", 64), ("a+", 128)), {"a", "a+", "b", "c"}),
        ((("a", 64), ("a+", 128)), {"a", "a+", "b", "c"}),
    ):
        guess.expect("x", prefixes)
        guess.moved("x", Residency.DROPPED, 0)
        guess.lost("x")
        assert set(guess.hashes) == left
    assert guess.tokens == 256
    guess.clear()
    assert (set(guess.hashes), guess.tokens) == (set(), 0)


@pytest.mark.parametrize("capabilities", [(), ("reports",)])
def test_an_engine_that_says_no_size_is_bounded_all_the_same(capabilities: tuple[Any, ...]) -> None:
    """Ten thousand prompts leave a bounded number of hashes, reported or not."""
    known = known_prefixes(Description(model="m", capabilities=capabilities))
    for number in range(10_000):
        known.expect(str(number), ((str(number), 64),))
        known.moved(str(number), Residency.RESIDENT, 64)
    assert len(known.hashes) == MAX_PREFIXES
