"""Writes the keys and values of a step's new tokens into the paged cache.

T = packed tokens, K = KV heads, P = pages of the pool, S = tokens a page, H = head size.
A (head, page) pair is contiguous (S x H values), so that a kernel reads a page of one head at once.
"""

from __future__ import annotations

from torch import Tensor


def kv_store_reference(pool_KPSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """What `kv_store` must equal: slot s is row s % S of page s // S."""
    size = pool_KPSH.shape[2]
    for row, slot in enumerate(slots_T.tolist()):
        pool_KPSH[:, slot // size, slot % size] = x_TKH[row]


def kv_store(pool_KPSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """Store `x_TKH` in place; `slots_T` (int64) are all different."""
    heads, pages, size, width = pool_KPSH.shape
    pool_KPSH.view(heads, pages * size, width).index_copy_(1, slots_T, x_TKH.transpose(0, 1))
