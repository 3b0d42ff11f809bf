"""Rotary position embedding in the half-split layout of Hugging Face models (arXiv:2104.09864).

T = packed tokens, N = heads, H = head size, F = H / 2 frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weftline_kernels.jit import kernel, power_of_two, tl


def rope_reference(x_TNH: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """The reference for `rope`: rotate components (i, i + F) by the angle of frequency i."""
    first, second = x_TNH.chunk(2, dim=-1)
    cos, sin = cos_TF[:, None, :], sin_TF[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rope(x_TNH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Rotate every head of `x_TNH`, and return a new tensor of the same shape and dtype.

    `cos_TH` and `sin_TH` come from `rope_tables`, in the dtype of `x_TNH`. The first half of
    `sin_TH` is negated. So two multiplications and one roll are enough: 4 tensor ops, not 7.
    """
    half = x_TNH.shape[-1] // 2
    rolled = torch.roll(x_TNH, half, dims=-1)
    return torch.addcmul(x_TNH * cos_TH[:, None, :], rolled, sin_TH[:, None, :])


def rope_triton(x_TNH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Do `rope` with one program per token, for all heads at once.

    `x_TNH` may be a slice of the fused projection that is contiguous in its last dimension. The
    result is rounded once, and by the torch path twice.
    """
    tokens, heads, width = x_TNH.shape
    o_TNH = torch.empty(x_TNH.shape, dtype=x_TNH.dtype, device=x_TNH.device)
    sizes = {"BLOCK_N": power_of_two(heads), "BLOCK_F": power_of_two(width // 2)}
    strides = (x_TNH.stride(0), x_TNH.stride(1))
    _rope[(tokens,)](x_TNH, cos_TH, sin_TH, o_TNH, *strides, heads, width // 2, **sizes)
    return o_TNH


def rope_tables(
    positions_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return (cos_TH, sin_TH) for `rope`. Compute them once per step, for all layers.

    The angles are float32 for every `dtype`, as in the models' original implementation.
    """
    angles_TF = positions_T.to(torch.float32)[:, None] * frequencies_F[None, :]
    cos, sin = angles_TF.cos(), angles_TF.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


@kernel
def _rope(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    o: tl.tensor,
    x_row: tl.tensor,
    x_head: tl.tensor,
    heads: tl.tensor,
    half: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    n, f = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_F)[None, :]
    here = (n < heads) & (f < half)
    width = half * 2
    x_NF = x + row * x_row + n * x_head + f
    first = tl.load(x_NF, mask=here, other=0.0).to(tl.float32)
    second = tl.load(x_NF + half, mask=here, other=0.0).to(tl.float32)
    # Use the second half of the tables, where the sine is not negated.
    angle = row * width + half + f
    cos_F = tl.load(cos + angle, mask=f < half, other=0.0).to(tl.float32)
    sin_F = tl.load(sin + angle, mask=f < half, other=0.0).to(tl.float32)
    o_NF = o + (row * heads + n) * width + f
    narrow = o.dtype.element_ty
    tl.store(o_NF, (first * cos_F - second * sin_F).to(narrow), mask=here)
    tl.store(o_NF + half, (second * cos_F + first * sin_F).to(narrow), mask=here)
