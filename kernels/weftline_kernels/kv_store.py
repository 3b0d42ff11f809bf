"""Writes the keys and values of a step's new tokens into the paged cache.

T = packed tokens, K = KV heads, P = pages of the pool, S = tokens a page, H = head size.
A (head, page) pair is contiguous (S x H values), so that a kernel reads a page of one head at once.
"""

from __future__ import annotations

from torch import Tensor

from weftline_kernels.jit import kernel, power_of_two, tl


def kv_store_reference(pool_KPSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """What `kv_store_triton` must equal: slot s is row s % S of page s // S; below 0, nowhere."""
    size = pool_KPSH.shape[2]
    for row, slot in enumerate(slots_T.tolist()):
        if slot < 0:
            continue
        pool_KPSH[:, slot // size, slot % size] = x_TKH[row]


def kv_store(pool_KPSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """Store `x_TKH` in place; `slots_T` (int64) are all different, and none is below 0."""
    heads, pages, size, width = pool_KPSH.shape
    pool_KPSH.view(heads, pages * size, width).index_copy_(1, slots_T, x_TKH.transpose(0, 1))


def kv_store_triton(pool_KPSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """`kv_store` as one program a token; `x_TKH` may be a slice of the fused projection.

    A token whose slot is below 0 is left out: it pads a captured step to its size. Raises
    ValueError where a head's pages are not contiguous.
    """
    heads, _, size, width = pool_KPSH.shape
    if pool_KPSH.stride()[1:] != (size * width, width, 1) or x_TKH.stride(2) != 1:
        raise ValueError("kv_store needs each head's pages contiguous: (K, P, S, H)")
    strides = (pool_KPSH.stride(0), x_TKH.stride(0), x_TKH.stride(1))
    blocks = {"BLOCK_K": power_of_two(heads), "BLOCK_H": power_of_two(width)}
    _kv_store[(len(x_TKH),)](pool_KPSH, x_TKH, slots_T, *strides, heads, width, **blocks)


@kernel
def _kv_store(
    pool: tl.tensor,
    x: tl.tensor,
    slots: tl.tensor,
    pool_head: tl.tensor,
    x_row: tl.tensor,
    x_head: tl.tensor,
    heads: tl.tensor,
    width: tl.tensor,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        k, h = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_H)[None, :]
        here = (k < heads) & (h < width)
        x_KH = tl.load(x + row * x_row + k * x_head + h, mask=here)
        # int64: a pool of 6,800 pages of LLaMA-7B holds 445 million values a layer and side, and
        # one of an H200's whole memory passes 2**31.
        tl.store(pool + k.to(tl.int64) * pool_head + slot * width + h, x_KH, mask=here)
