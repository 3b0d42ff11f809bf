"""The short convolution of a layer: each channel of a token is a sum of its last few inputs.

The inputs of all tokens lie in the KV cache, so a sequence can go on behind any token.

T = packed tokens, C = channels, D = taps, E = D - 1 earlier tokens, B = blocks of the pool,
S = tokens per block, H = head size, Y = rows of H numbers that a token has in the cache.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from weftline_kernels.work_list import NOWHERE


def short_conv(
    x_TC: Tensor, taps_CD: Tensor, cache_YBSH: Tensor, slots_T: Tensor, before_TE: Tensor
) -> Tensor:
    """Store the inputs, and return the sums (T, C). The last tap is that of the token itself.

    `before_TE` are the slots of earlier tokens, the nearest first, or NOWHERE. Rows of this step
    may be among them.
    """
    rows, _, _, width = cache_YBSH.shape
    cells_YXH = cache_YBSH.view(rows, -1, width)
    padded_TC = F.pad(x_TC, (0, rows * width - x_TC.shape[1]))
    cells_YXH.index_copy_(1, slots_T, padded_TC.view(-1, rows, width).transpose(0, 1))
    sum_TC = x_TC * taps_CD[:, -1]
    for step, slots in enumerate(before_TE.unbind(1), 2):
        found_TC = cells_YXH[:, slots.clamp(min=0)].transpose(0, 1).flatten(1)[:, : x_TC.shape[1]]
        found_TC = found_TC.masked_fill(slots[:, None] == NOWHERE, 0)
        sum_TC = sum_TC + found_TC * taps_CD[:, -step]
    return sum_TC
