"""The gate of a Llama MLP: silu of the first half of the channels, times the second half.

T = packed tokens, M = MLP channels. The fused gate-up projection has 2M outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_kernels.jit import kernel, tl

BLOCK = 1024  # channels per program; LLaMA-7B's 11,008 take 11 programs per row


def silu_mul_reference(x_T2M: Tensor) -> Tensor:
    """The reference for `silu_mul`. It computes in float32 or wider."""
    gate, up = x_T2M.to(torch.promote_types(x_T2M.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(x_T2M.dtype)


def silu_mul(x_T2M: Tensor) -> Tensor:
    """Return silu(gate) * up as a new (T, M) tensor. Raises ValueError for odd channels."""
    if x_T2M.shape[-1] % 2:
        raise ValueError(f"fused gate-up needs an even last dimension, got {x_T2M.shape[-1]}")
    gate, up = x_T2M.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def silu_mul_triton(x_T2M: Tensor) -> Tensor:
    """Do `silu_mul` in one pass. `x_T2M` (T, 2M) is contiguous along its channels."""
    tokens, channels = x_T2M.shape[0], x_T2M.shape[1] // 2
    o_TM = torch.empty(tokens, channels, dtype=x_T2M.dtype, device=x_T2M.device)
    grid = (tokens, -(-channels // BLOCK))
    _silu_mul[grid](x_T2M, o_TM, x_T2M.stride(0), channels, BLOCK=BLOCK)
    return o_TM


@kernel
def _silu_mul(
    x: tl.tensor, o: tl.tensor, stride: tl.tensor, channels: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = c < channels
    # The exponential and the product are computed in float32, and the result is rounded once.
    gate = tl.load(x + row * stride + c, mask=here, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride + channels + c, mask=here, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(o + row * channels + c, gated.to(o.dtype.element_ty), mask=here)
