"""The torch path of attention against its reference, on random trees of shared blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_kernels.attention import TorchAttention, attention_reference
from weftline_kernels.work_list import SequenceRows, build

BLOCK = 4
POOL = 64


@st.composite
def steps(draw: st.DrawFn) -> list[SequenceRows]:
    """Return random parts of a step: each continues an earlier part's blocks or starts alone."""
    unused = list(range(POOL))
    tables: list[list[int]] = []
    parts: list[SequenceRows] = []
    first = 0
    for _ in range(draw(st.integers(1, 6))):
        table: list[int] = []
        goes_on = bool(tables) and draw(st.booleans())
        if goes_on:
            parent = draw(st.sampled_from(tables))
            table = parent[: draw(st.integers(0, len(parent)))]
        shared = len(table) * BLOCK
        start = shared + draw(st.integers(0, 9))
        count = draw(st.sampled_from([1, 1, 1, 2, 7]))
        while len(table) * BLOCK < start + count:
            table.append(unused.pop())
        tables.append(table)
        parts.append(SequenceRows(table, first, count, start))
        first += count
    return parts


@settings(max_examples=50, deadline=None)
@given(
    steps(),
    st.sampled_from([(4, 1), (2, 2), (1, 3)]),
    st.sampled_from([1, 2, 1000]),
    st.sampled_from([{}, {"window": 1}, {"window": 5}, {"window": 9, "cap": 1.5}]),
)
def test_sharing_changes_no_result(
    parts: list[SequenceRows],
    heads: tuple[int, int],
    min_blocks_saved: int,
    words: dict[str, Any],
) -> None:
    """With any sharing, each row equals the reference on the work list without sharing. A shared
    prefix may lie wholly before a row's window."""
    kv_heads, group = heads
    rows = sum(part.count for part in parts)
    torch.manual_seed(rows)
    q = torch.randn(rows, kv_heads * group, 8, dtype=torch.float64)
    keys = torch.randn(kv_heads, POOL, BLOCK, 8, dtype=torch.float64)
    values = torch.randn(kv_heads, POOL, BLOCK, 8, dtype=torch.float64)
    plain = build(parts, BLOCK, min_blocks_saved=10**9)
    assert not plain.merged
    expected = attention_reference(plain, 0.3, **words)(q, keys, values)
    work = build(parts, BLOCK, min_blocks_saved=min_blocks_saved)
    torch.testing.assert_close(
        TorchAttention(work, 0.3, **words)(q, keys, values), expected, atol=1e-12, rtol=0
    )
    torch.testing.assert_close(
        attention_reference(work, 0.3, **words)(q, keys, values), expected, atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_merged_parts_keep_the_accuracy_of_their_type(dtype: torch.dtype, atol: float) -> None:
    """Four queries share 40 blocks, and each has one block of its own."""
    torch.manual_seed(0)
    parts = [SequenceRows([*range(40), 40 + i], i, 1, 40 * BLOCK + i) for i in range(4)]
    q = torch.randn(4, 9, 64).to(dtype)
    keys, values = (torch.randn(3, POOL, BLOCK, 64).to(dtype) for _ in range(2))
    work = build(parts, BLOCK)
    assert len(work.items) == 5
    expected = attention_reference(work, 0.125)(q.double(), keys.double(), values.double())
    found = TorchAttention(work, 0.125)(q, keys, values).double()
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def shapes(parts: list[SequenceRows], min_blocks_saved: int) -> list[tuple[list[int], list[int]]]:
    work = build(parts, BLOCK, min_blocks_saved=min_blocks_saved)
    return [(item.blocks.tolist(), sorted(item.queries.tolist())) for item in work.items]


def test_a_tree_of_two_levels_makes_an_item_for_each_node() -> None:
    """a and b share 4 blocks, c 2 of them: an item of 3 queries, one of 2, and 3 own ends."""
    parts = [
        SequenceRows([0, 1, 2, 3, 4], 0, 1, 17),
        SequenceRows([0, 1, 2, 3, 5], 1, 1, 17),
        SequenceRows([0, 1, 6], 2, 1, 9),
    ]
    assert shapes(parts, 1) == [
        ([0, 1], [0, 1, 2]),
        ([2, 3], [0, 1]),
        ([4], [0]),
        ([5], [1]),
        ([6], [2]),
    ]


def test_a_run_that_saves_too_little_goes_to_its_branches() -> None:
    """The root's 2 blocks save 4 reads, less than the 6 required. Together with the 4 blocks below
    it, they save the pair of a and b 6 reads."""
    parts = [
        SequenceRows([0, 1, 2, 3, 7, 8, 4], 0, 1, 25),
        SequenceRows([0, 1, 2, 3, 7, 8, 5], 1, 1, 25),
        SequenceRows([0, 1, 6], 2, 1, 9),
    ]
    assert shapes(parts, 6) == [
        ([0, 1, 2, 3, 7, 8], [0, 1]),
        ([4], [0]),
        ([5], [1]),
        ([0, 1, 6], [2]),
    ]


def test_blocks_filled_in_this_step_are_shared_by_those_behind_them_only() -> None:
    """a fills blocks 0 to 2 in this step. Only b and c, which come after them, share them."""
    parts = [
        SequenceRows([0, 1, 2], 0, 12, 0),
        SequenceRows([0, 1, 2, 3], 12, 1, 12),
        SequenceRows([0, 1, 2, 4], 13, 1, 13),
    ]
    assert shapes(parts, 1) == [
        ([0, 1, 2], [12, 13]),
        ([0, 1, 2], list(range(12))),
        ([3], [12]),
        ([4], [13]),
    ]
    causal = build(parts, BLOCK, min_blocks_saved=1).items[1]
    assert causal.visible.tolist() == list(np.arange(1, 13))
