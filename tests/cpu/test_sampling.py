"""Sampling equals a plain, row-by-row version of the same rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine.api import SamplingParams
from weftline_engine.own.embedded.sample.token_choice import (
    UNSURE,
    Rows,
    SamplingTable,
    bar_end,
    draw,
    uniforms,
)

ROWS = 6


def sample(logits: npt.NDArray[Any], rows: Rows) -> npt.NDArray[np.int64]:
    """The tokens of all rows, once the host has them."""
    draws = draw(logits, rows)
    return draws.settle(draws.tokens_R)


def plain_choice(logits: npt.NDArray[np.float64], params: SamplingParams, uniform: float) -> int:
    """Apply temperature, then min_p, then top_k, then top_p, then invert the distribution function.

    Candidates are in falling order if one of these is on, else in the vocabulary's order.
    """
    if params.temperature == 0:
        return int(logits.argmax())
    x = logits / np.float64(np.float32(params.temperature))
    cut = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    order = np.argsort(-x, kind="stable") if cut else np.arange(len(x))
    order = order[np.exp(x[order] - x.max()) >= np.float32(params.min_p)]
    if params.top_k > 0:
        order = order[: params.top_k]
    p = np.exp(x[order] - x.max())
    p /= p.sum()
    kept = 1
    while kept < len(p) and p[:kept].sum() < np.float32(params.top_p):
        kept += 1
    if cut:
        p = p[:kept]
    share = uniform * p.sum()
    for index in range(len(p)):
        if p[: index + 1].sum() > share:
            return int(order[index])
    return int(order[len(p) - 1])


params_strategy = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 5000]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    seed=st.integers(0, 2**70),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(params_strategy, min_size=1, max_size=ROWS),
    st.sampled_from([20, 3000]),
    st.integers(0, 1000),
)
def test_a_batch_samples_like_the_plain_rule(
    requests: list[SamplingParams], vocabulary: int, seed: int
) -> None:
    """A vocabulary of 3,000 is larger than the candidates that are sorted first."""
    logits = np.random.default_rng(seed).normal(size=(len(requests), vocabulary)) * 2
    table = SamplingTable(2)
    slots = [table.add(one, one.seed or 0) for one in requests]
    rows = table.rows(slots, list(range(len(requests))))
    expected = [
        plain_choice(row, one, float(uniform))
        for row, one, uniform in zip(logits, requests, rows.uniform, strict=True)
    ]
    assert sample(logits, rows).tolist() == expected


def test_a_row_with_too_few_candidates_is_drawn_again() -> None:
    """Of 3,000 tokens that are about equally likely, the 1,024 that are sorted first have less than
    half of the probability. The row beside it has enough with one, and keeps its token."""
    logits = np.linspace(0.5, 0, 3000)[None].repeat(2, axis=0)
    logits[1, 5] = 100
    table = SamplingTable(2)
    params = SamplingParams(max_tokens=9, top_p=0.9)
    rows = table.rows([table.add(params, 1), table.add(params, 2)], [0, 0])
    draws = draw(logits.copy(), rows)
    assert draws.tokens_R.tolist() == [UNSURE, 5]
    settled = draws.settle(draws.tokens_R)
    assert settled.tolist() == [plain_choice(logits[0], params, rows.uniform[0]), 5]


def test_draws_follow_the_distribution() -> None:
    """Of 40,000 draws of one row, each frequency is within 5 standard deviations of its
    probability.
    """
    p = np.array([0.5, 0.25, 0.15, 0.1])
    count = 40_000
    table = SamplingTable(1)
    slot = table.add(SamplingParams(max_tokens=1), 42)
    rows = table.rows([slot] * count, list(range(count)))
    logits = np.log(p)[None].repeat(count, axis=0)
    found = np.bincount(sample(logits, rows), minlength=4) / count
    assert np.all(np.abs(found - p) < 5 * np.sqrt(p * (1 - p) / count))


def test_a_seed_draws_the_same_alone_and_in_a_batch() -> None:
    """A random number depends on the seed and the token's place alone."""
    seeds = np.array([7, 8, 7, 2**64 - 1], np.uint64)
    counters = np.array([0, 0, 1, 5], np.uint64)
    together = uniforms(seeds, counters)
    alone = [uniforms(seeds[i : i + 1], counters[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone
    assert len(set(alone)) == 4
    assert 0 <= together.min() <= together.max() < 1


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    """Token 2 is by far the best and ends the output. At least two tokens are required. After one
    token the next best is sampled; after two, token 2 may be. The last row also ends at token 1,
    which it names itself.
    """
    table = SamplingTable(2)
    slot = table.add(SamplingParams(max_tokens=9, min_tokens=2, temperature=0), 0)
    logits = np.array([[0.0, 3.0, 9.0]], np.float32).repeat(3, axis=0)
    rows = table.rows([slot] * 3, [1, 2, 1])
    bar_end(logits, rows, (2,), {1: (1,), 2: (1,)})
    assert sample(logits, rows).tolist() == [1, 2, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_yields_minus_one(bad: float, temperature: float) -> None:
    """NO_TOKEN stands in its place. The rows beside it get their tokens."""
    table = SamplingTable(3)
    params = SamplingParams(max_tokens=1, temperature=temperature, top_k=2)
    slots = [table.add(params, i) for i in range(3)]
    logits = np.zeros((3, 50), np.float32)
    logits[:, 7] = 100
    logits[1, 20] = bad
    assert sample(logits, table.rows(slots, [0, 0, 0])).tolist() == [7, -1, 7]


def test_a_slot_is_reused() -> None:
    """The next request in it has its own parameters, none of the last one's."""
    table = SamplingTable(1)
    first = table.add(SamplingParams(max_tokens=1, temperature=0.5), 1)
    table.remove(first)
    second = table.add(SamplingParams(max_tokens=1, temperature=0), 2)
    assert second == first
    assert table.rows([second], [0]).temperature.tolist() == [0.0]
