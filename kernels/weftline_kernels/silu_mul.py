"""The gate of a Llama MLP: silu of the first half of the channels times the second half.

T = packed tokens, M = MLP channels; `2M` is the fused gate-up projection's output.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def silu_mul_reference(x_T2M: Tensor) -> Tensor:
    """What `silu_mul` must equal; at least float32 inside."""
    gate, up = x_T2M.to(torch.promote_types(x_T2M.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(x_T2M.dtype)


def silu_mul(x_T2M: Tensor) -> Tensor:
    """silu(gate) * up as a new (T, M) tensor; raises ValueError where the channels are odd."""
    if x_T2M.shape[-1] % 2:
        raise ValueError(f"fused gate-up needs an even last dimension, got {x_T2M.shape[-1]}")
    gate, up = x_T2M.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
