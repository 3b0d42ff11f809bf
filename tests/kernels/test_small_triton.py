"""The small Triton kernels of a decoder layer against their references.

They run in Triton's interpreter. It rounds float32 to bfloat16 otherwise than torch does, by one
unit in the last place, which is 2**-8 of the value.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weftline_kernels.jit import INTERPRETED
from weftline_kernels.kv_store import NO_SLOT, kv_store_reference, kv_store_triton
from weftline_kernels.rms_norm import (
    add_rms_norm_reference,
    add_rms_norm_triton,
    rms_norm_reference,
    rms_norm_triton,
)
from weftline_kernels.rope import rope_tables
from weftline_kernels.rope_store import rope_store, rope_store_reference, rope_store_triton
from weftline_kernels.silu_mul import silu_mul_reference, silu_mul_triton

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")

TYPES = [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("shape", [(1, 576), (5, 8), (3, 1), (2, 3, 64)])
def test_rms_norm(dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]) -> None:
    """Widths need not be powers of two, and there may be several leading dimensions."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.rand(shape[-1]).to(dtype)
    assert_close(rms_norm_triton(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("shape", [(1, 576), (5, 8)])
def test_add_rms_norm(dtype: torch.dtype, tolerance: float, shape: tuple[int, int]) -> None:
    """The sum is that of torch, bit by bit, and the norm is that of the rounded sum."""
    torch.manual_seed(0)
    x, more = torch.randn(2, *shape).to(dtype)
    weight = torch.rand(shape[-1]).to(dtype)
    sums, normed = add_rms_norm_triton(x, more, weight, 1e-5)
    expected, expected_norm = add_rms_norm_reference(x, more, weight, 1e-5)
    # The interpreter rounds to bfloat16 otherwise than torch.
    assert_close(sums, expected, 0.0 if dtype != torch.bfloat16 else tolerance)
    assert_close(normed, expected_norm, 2 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "with norms of the heads"])
@pytest.mark.parametrize("turned", [24, 16], ids=["whole heads", "two thirds of a head"])
@pytest.mark.parametrize("run", [rope_store, rope_store_triton], ids=["torch", "Triton"])
def test_rope_store(
    run: Callable[..., torch.Tensor], turned: int, normed: bool, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    """Seven query heads, two key heads, two value heads: a program has heads of two kinds. The
    third token pads a captured step, and is stored by no kernel."""
    torch.manual_seed(0)
    qkv, slots = torch.randn(5, 11, 24).to(dtype), torch.tensor([17, 0, NO_SLOT, 30, 31])
    if run is rope_store:
        qkv, slots = qkv[[0, 1, 3, 4]], slots[slots != NO_SLOT]
    positions = torch.tensor([0, 1, 2, 900, 8191])[: len(slots)]
    frequencies = 1 / 10000 ** (torch.arange(turned // 2) / (turned // 2))
    tables = rope_tables(positions, frequencies, dtype)
    norms = (torch.rand(24).to(dtype), torch.rand(24).to(dtype), 1e-5) if normed else None
    found, expected = (torch.zeros(2, 2, 4, 8, 24, dtype=dtype) for _ in range(2))
    q = run(qkv, *tables, norms, found[0], found[1], slots)
    q_expected = rope_store_reference(qkv, *tables, norms, expected[0], expected[1], slots)
    assert_close(q, q_expected, 3 * tolerance)
    assert_close(found, expected, 3 * tolerance)
    assert torch.equal(found[1], expected[1])  # values are copied
    assert (found[0] != 0).any(-1).sum() == 2 * 4


def test_rope_store_refuses_a_cache_whose_blocks_are_scattered() -> None:
    """With blocks before heads in memory, the kernel would write to the wrong place."""
    pool = torch.zeros(4, 3, 8, 24).transpose(0, 1)
    cos, sin = rope_tables(torch.tensor([1]), torch.ones(12), torch.float32)
    with pytest.raises(ValueError, match="contiguous"):
        rope_store_triton(torch.zeros(1, 9, 24), cos, sin, None, pool, pool, torch.tensor([0]))


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("channels", [3, 1100])
def test_silu_mul(dtype: torch.dtype, tolerance: float, channels: int) -> None:
    """There are fewer channels than one program computes, or more."""
    torch.manual_seed(0)
    x = torch.randn(4, 2 * channels).to(dtype)
    assert_close(silu_mul_triton(x), silu_mul_reference(x), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_store_writes_its_slots_and_no_other(dtype: torch.dtype) -> None:
    """Three KV heads of size 20 go from a fused projection into one layer of a larger cache. The
    fourth token is padding."""
    torch.manual_seed(0)
    x, slots = torch.randn(4, 5, 20).to(dtype)[:, 1:4], torch.tensor([17, 0, 30, NO_SLOT])
    found, expected = (torch.zeros(2, 3, 4, 8, 20, dtype=dtype) for _ in range(2))
    kv_store_reference(expected[1], x, slots)
    kv_store_triton(found[1], x, slots)
    assert torch.equal(found, expected)
    assert (found != 0).any(-1).sum() == 9


def test_kv_store_refuses_a_cache_whose_blocks_are_scattered() -> None:
    """With blocks before heads in memory, the kernel would write to the wrong place."""
    pool = torch.zeros(4, 3, 8, 20).transpose(0, 1)
    with pytest.raises(ValueError, match="contiguous"):
        kv_store_triton(pool, torch.zeros(1, 3, 20), torch.tensor([0]))
