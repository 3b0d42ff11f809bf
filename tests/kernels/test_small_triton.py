"""The Triton kernels of RMSNorm, RoPE, SiLU-mul and the KV store against their references.

They run in Triton's interpreter. It rounds float32 to bfloat16 otherwise than torch does, by one
unit in the last place, which is 2**-8 of the value.
"""

from __future__ import annotations

import pytest
import torch

from weftline_kernels.jit import INTERPRETED
from weftline_kernels.kv_store import NO_SLOT, kv_store_reference, kv_store_triton
from weftline_kernels.rms_norm import rms_norm_reference, rms_norm_triton
from weftline_kernels.rope import rope_reference, rope_tables, rope_triton
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
@pytest.mark.parametrize("heads", [(0, 3), (1, 6)])
def test_rope(dtype: torch.dtype, tolerance: float, heads: tuple[int, int]) -> None:
    """The heads are a whole tensor, or a slice of the fused projection."""
    torch.manual_seed(0)
    x = torch.randn(5, heads[1] + 1, 24).to(dtype)[:, heads[0] : heads[1]]
    positions = torch.tensor([0, 1, 2, 900, 8191])
    frequencies = 1 / 10000 ** (torch.arange(12) / 12)
    cos_TH, sin_TH = rope_tables(positions, frequencies, dtype)
    expected = rope_reference(x.float(), cos_TH[:, 12:].float(), sin_TH[:, 12:].float())
    found = rope_triton(x, cos_TH, sin_TH)
    assert found.is_contiguous()
    assert_close(found, expected.to(dtype), tolerance)


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
