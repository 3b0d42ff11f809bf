"""RMSNorm, RoPE, SiLU-mul and the KV store against their references."""

from __future__ import annotations

import pytest
import torch

from weftline_kernels.kv_store import kv_store, kv_store_reference
from weftline_kernels.rms_norm import rms_norm, rms_norm_reference
from weftline_kernels.rope import rope, rope_reference, rope_tables
from weftline_kernels.silu_mul import silu_mul, silu_mul_reference

TYPES = [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize(("dtype", "atol"), TYPES)
@pytest.mark.parametrize("shape", [(1, 576), (5, 8), (3, 1)])
def test_rms_norm(dtype: torch.dtype, atol: float, shape: tuple[int, int]) -> None:
    """One row, several rows, and rows of a single number equal the reference."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.rand(shape[1]).to(dtype)
    expected = rms_norm_reference(x, weight, 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected, atol=atol, rtol=atol)


@pytest.mark.parametrize(("dtype", "atol"), TYPES)
def test_rope(dtype: torch.dtype, atol: float) -> None:
    """Positions up to 8,191 equal the reference, and position 0 is not rotated."""
    torch.manual_seed(0)
    x = torch.randn(5, 3, 8).to(dtype)
    positions = torch.tensor([0, 1, 2, 900, 8191])
    frequencies = 1 / 10000 ** (torch.arange(4) / 4)
    angles = positions[:, None] * frequencies
    expected = rope_reference(x, angles.cos().to(dtype), angles.sin().to(dtype))
    found = rope(x, *rope_tables(positions, frequencies, dtype))
    torch.testing.assert_close(found, expected, atol=atol, rtol=atol)
    torch.testing.assert_close(found[0], x[0])


@pytest.mark.parametrize(("dtype", "atol"), TYPES)
def test_silu_mul(dtype: torch.dtype, atol: float) -> None:
    """The first half gates the second. An odd number of columns has no halves."""
    torch.manual_seed(0)
    x = torch.randn(4, 6).to(dtype)
    torch.testing.assert_close(silu_mul(x), silu_mul_reference(x), atol=atol, rtol=atol)
    with pytest.raises(ValueError, match="even"):
        silu_mul(x[:, :5])


def test_kv_store_writes_its_slots_and_no_other() -> None:
    """Three tokens go to slots of three blocks. The rest of the pool stays 0."""
    torch.manual_seed(0)
    x, slots = torch.randn(3, 2, 4), torch.tensor([17, 0, 30])
    expected, found = torch.zeros(2, 4, 8, 4), torch.zeros(2, 4, 8, 4)
    kv_store_reference(expected, x, slots)
    kv_store(found, x, slots)
    assert torch.equal(found, expected)
    assert (found != 0).any(-1).sum() == 6
