"""RMS normalisation: divides each row by its root mean square and scales it (arXiv:1910.07467).

In a decoder a sum comes before nearly every norm, so there is one operation for both.

T = packed tokens, C = channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_kernels.jit import kernel, power_of_two, tl


def rms_norm_reference(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """The reference for `rms_norm`. It computes in float32 or wider."""
    wide = torch.promote_types(x_TC.dtype, torch.float32)
    x = x_TC.to(wide)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * weight_C.to(wide)).to(x_TC.dtype)


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `x_TC`, and return the same shape and dtype.

    There may be any number of leading dimensions.
    """
    return F.rms_norm(x_TC, (x_TC.shape[-1],), weight_C, eps)


def add_rms_norm_reference(
    x_TC: Tensor, more_TC: Tensor, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The reference for `add_rms_norm`. The sum is rounded to the dtype before it is normalised."""
    sum_TC = x_TC + more_TC
    return sum_TC, rms_norm_reference(sum_TC, weight_C, eps)


def add_rms_norm(
    x_TC: Tensor, more_TC: Tensor, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + more, and the sum normalised: both (T, C)."""
    sum_TC = x_TC + more_TC
    return sum_TC, rms_norm(sum_TC, weight_C, eps)


def rms_norm_triton(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """Do `rms_norm` with one program per row, which reads and writes the row once."""
    rows_TC = x_TC.reshape(-1, x_TC.shape[-1])
    o_TC = torch.empty_like(rows_TC, memory_format=torch.contiguous_format)
    _launch(rows_TC, None, weight_C, o_TC, o_TC, eps)
    return o_TC.view(x_TC.shape)


def add_rms_norm_triton(
    x_TC: Tensor, more_TC: Tensor, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Do `add_rms_norm` with one program per row, which reads both rows once."""
    sum_TC, o_TC = torch.empty_like(x_TC), torch.empty_like(x_TC)
    _launch(x_TC, more_TC.contiguous(), weight_C, sum_TC, o_TC, eps)
    return sum_TC, o_TC


def _launch(
    x_TC: Tensor, more_TC: Tensor | None, weight_C: Tensor, sum_TC: Tensor, o_TC: Tensor, eps: float
) -> None:
    channels = x_TC.shape[1]
    block = power_of_two(channels)
    _rms_norm[(len(x_TC),)](
        x_TC,
        x_TC if more_TC is None else more_TC,
        weight_C,
        sum_TC,
        o_TC,
        x_TC.stride(0),
        channels,
        eps,
        ADDED=more_TC is not None,
        BLOCK=block,
        num_warps=min(8, max(1, block // 512)),
    )


@kernel
def _rms_norm(
    x: tl.tensor,
    more: tl.tensor,
    weight: tl.tensor,
    added: tl.tensor,
    o: tl.tensor,
    stride: tl.tensor,
    channels: tl.tensor,
    eps: tl.tensor,
    ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    here = c < channels
    x_C = tl.load(x + row * stride + c, mask=here, other=0.0).to(tl.float32)
    if ADDED:
        more_C = tl.load(more + row * channels + c, mask=here, other=0.0).to(tl.float32)
        rounded_C = (x_C + more_C).to(added.dtype.element_ty)
        tl.store(added + row * channels + c, rounded_C, mask=here)
        x_C = rounded_C.to(tl.float32)
    # The padding up to BLOCK is 0 and adds nothing to the sum. The mean is over real channels.
    root = tl.rsqrt(tl.sum(x_C * x_C, axis=0) / channels + eps)
    weight_C = tl.load(weight + c, mask=here, other=0.0).to(tl.float32)
    tl.store(o + row * channels + c, (x_C * root * weight_C).to(o.dtype.element_ty), mask=here)
