"""The Triton kernels of attention against the reference, in Triton's interpreter.

It takes some 10 ms for a tile and head, so the shapes are small: what matters are levels of
sharing, borders, and the number of heads, not length.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from weftline_kernels.attention import attention_reference
from weftline_kernels.attention_triton import TritonAttention, attend
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.jit import INTERPRETED
from weftline_kernels.step_attention import AttentionShape, StepAttention
from weftline_kernels.tiles import cut
from weftline_kernels.work_list import SequenceRows, WorkList, build

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")

BLOCK = 4
SCALE = 0.3


def rows(*tables: tuple[list[int], int, int]) -> list[SequenceRows]:
    """Return the packed parts of a step, from (blocks, queries, position of the first query)."""
    firsts = accumulate((count for _, count, _ in tables), initial=0)
    return [SequenceRows(blocks, first, count, start)
            for (blocks, count, start), first in zip(tables, firsts, strict=False)]  # fmt: skip


STEPS = {
    "one token alone": rows(([5], 1, 0)),
    "a prefix and a block": rows(*(([0, 1, 2, 3, 10 + i], 1, 17 + i) for i in range(3))),
    "three levels": rows(
        ([0, 1, 2, 3, 4, 5, 10], 1, 25),
        ([0, 1, 2, 3, 4, 5, 11], 1, 24),
        ([0, 1, 2, 3, 12, 13], 1, 22),
        ([0, 1, 14], 1, 9),
        ([20, 21], 1, 5),
    ),
    "a prompt alone": rows((list(range(20)), 70, 3)),
    "a prompt behind a shared prefix": rows(
        ([0, 1, 2, 3, 4, 10, 11, 12], 11, 20),
        ([0, 1, 2, 3, 4, 13], 1, 22),
        ([0, 1, 2, 3, 4, 14], 1, 20),
    ),
    "sixteen sharers": rows(*(([*range(9), 10 + 2 * i, 11 + 2 * i], 1, 37 + i % 6)
                              for i in range(16))),
}  # fmt: skip


def inputs(
    work: WorkList, kv_heads: int, group: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries that are a slice of a fused projection, and a layer of a larger cache."""
    torch.manual_seed(work.rows)
    q = torch.randn(work.rows, kv_heads * (group + 2), width).to(dtype)
    cache = torch.randn(2, kv_heads, 48, BLOCK, width).to(dtype)
    return q[:, : kv_heads * group], cache[0], cache[1]


CASES = [
    *((name, heads, torch.float32, 2e-6) for name in STEPS for heads in ((2, 1), (1, 3), (1, 4))),
    ("three levels", (2, 1), torch.bfloat16, 2e-2),
    ("a prompt behind a shared prefix", (1, 4), torch.bfloat16, 2e-2),
]


@pytest.mark.parametrize(("name", "heads", "dtype", "atol"), CASES)
def test_each_row_gets_what_the_reference_gives_unshared(
    name: str, heads: tuple[int, int], dtype: torch.dtype, atol: float
) -> None:
    """Items are split after 12 tokens, so one of 20 has two parts and ends within a block."""
    plain = build(STEPS[name], BLOCK, min_blocks_saved=10**9)
    q, keys, values = inputs(plain, *heads, 16, dtype)
    expected = attention_reference(plain, SCALE)(q.double(), keys.double(), values.double())
    work = build(STEPS[name], BLOCK, min_blocks_saved=1)
    found = TritonAttention(work, SCALE, split=12)(q, keys, values)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=0)


def test_widths_that_are_no_power_of_two() -> None:
    """With head size 20 a program loads 32 channels, of which 12 belong to the next head."""
    work = build(STEPS["three levels"], BLOCK, min_blocks_saved=1)
    q, keys, values = inputs(work, 2, 3, 20, torch.float32)
    expected = attention_reference(work, SCALE)(q, keys, values)
    torch.testing.assert_close(
        TritonAttention(work, SCALE, split=12)(q, keys, values), expected, atol=2e-6, rtol=0
    )


def test_a_causal_row_may_see_nothing_of_a_part() -> None:
    """Ten queries on 10 tokens, split after 4: the first four see no token of the later parts.
    The log-sum-exp of these parts is minus infinity and must not become NaN."""
    work = build(rows(([0, 1, 2], 10, 0)), BLOCK)
    q, keys, values = inputs(work, 1, 2, 16, torch.float32)
    assert cut(work, BLOCK, 2, 4).slots == 30
    expected = attention_reference(work, SCALE)(q, keys, values)
    found = TritonAttention(work, SCALE, split=4)(q, keys, values)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_large_scores_stay_finite() -> None:
    """Scores are in the thousands: exp2 of one would overflow, but exp2 of score - top does not."""
    work = build(STEPS["three levels"], BLOCK, min_blocks_saved=1)
    q, keys, values = inputs(work, 1, 2, 16, torch.float32)
    expected = attention_reference(work, SCALE)(q * 1000, keys, values)
    found = TritonAttention(work, SCALE, split=12)(q * 1000, keys, values)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_one_set_of_buffers_serves_steps_of_different_shape() -> None:
    """The kernel is launched for the capacity, as in a graph, and reads each step's counts."""
    held = DeviceTiles(Capacity(40, 60, 40, 20, 80), 16, 64, torch.device("cpu"))
    for name in ("sixteen sharers", "one token alone", "three levels"):
        work = build(STEPS[name], BLOCK, min_blocks_saved=1)
        held.load(cut(work, BLOCK, 2, 12))
        q, keys, values = inputs(work, 1, 2, 16, torch.float32)
        padded = torch.zeros(20, *q.shape[1:])
        padded[: work.rows] = q
        found = attend(held, padded, keys, values, SCALE)[: work.rows]
        expected = attention_reference(work, SCALE)(q, keys, values)
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_a_captured_step_has_wide_tiles_or_none() -> None:
    """Each case is captured, and a loaded step says which it is. A step without room is refused."""
    cpu, shape = torch.device("cpu"), AttentionShape(4, 2, 16, BLOCK, torch.bfloat16, SCALE)
    step = StepAttention(shape, cpu, Capacity(40, 60, 60, 20, 80))
    assert step.widths() == (False, True)
    for name, wide in (("sixteen sharers", True), ("one token alone", False)):
        work = build(STEPS[name], BLOCK, min_blocks_saved=1)
        assert step.load(work) and step.wide is wide
        q, keys, values = inputs(work, 2, 2, 16, torch.bfloat16)
        padded = torch.zeros(20, *q.shape[1:], dtype=q.dtype)
        padded[: work.rows] = q
        found = step.function(wide=wide)(padded, keys, values)[: work.rows]
        expected = attention_reference(work, SCALE)(q, keys, values)
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    few = StepAttention(shape, cpu, Capacity(1, 1, 1, 20, 1))
    assert few.widths() == (False, True)
    assert not few.load(build(STEPS["three levels"], BLOCK, min_blocks_saved=1))


def test_a_cache_of_another_layout_is_refused() -> None:
    """With blocks before heads in memory, the kernel would read another head's tokens."""
    work = build(STEPS["one token alone"], BLOCK)
    pool = torch.zeros(48, 2, BLOCK, 16).transpose(0, 1)
    with pytest.raises(ValueError, match="contiguous"):
        TritonAttention(work, SCALE)(torch.zeros(1, 2, 16), pool, pool)
