"""RMS normalisation: each row is divided by its root mean square and scaled (arXiv:1910.07467).

T = packed tokens, C = channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_reference(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """What `rms_norm` must equal; at least float32 inside."""
    wide = torch.promote_types(x_TC.dtype, torch.float32)
    x = x_TC.to(wide)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * weight_C.to(wide)).to(x_TC.dtype)


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `x_TC` (any number of leading ones); same shape and dtype."""
    return F.rms_norm(x_TC, (x_TC.shape[-1],), weight_C, eps)
