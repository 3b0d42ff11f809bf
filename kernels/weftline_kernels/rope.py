"""Rotary position embedding in the half-split layout of Hugging Face models (arXiv:2104.09864).

T = packed tokens, N = heads, H = head size, F = H / 2 frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def rope_tables(
    positions_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype, amplitude: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return (cos_TH, sin_TH) for `rope`. Compute them once per step, for all layers.

    The angles are float32 for every `dtype`, as in the models' original implementation. YaRN and
    LongRoPE multiply sines and cosines by an `amplitude`.
    """
    angles_TF = positions_T.to(torch.float32)[:, None] * frequencies_F[None, :]
    cos, sin = angles_TF.cos() * amplitude, angles_TF.sin() * amplitude
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
