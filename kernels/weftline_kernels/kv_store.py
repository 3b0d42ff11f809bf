"""Writes the keys or values of a step's new tokens into the blocks of the KV cache.

T = packed tokens, K = KV heads, B = blocks of the pool, S = tokens per block, H = head size.
A block of one head is contiguous (S x H values), so a kernel reads it at once.
"""

from __future__ import annotations

from torch import Tensor

from weftline_kernels.jit import kernel, power_of_two, tl

# The slot of a row that is not stored. A kernel reads slots from a tensor, which can hold no None.
NO_SLOT = -1


def kv_store_reference(pool_KBSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """The reference: store each token in slot s, row s % S of block s // S. Skip NO_SLOT."""
    size = pool_KBSH.shape[2]
    for row, slot in enumerate(slots_T.tolist()):
        if slot == NO_SLOT:
            continue
        pool_KBSH[:, slot // size, slot % size] = x_TKH[row]


def kv_store(pool_KBSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """Store `x_TKH` in place. `slots_T` (int64) are all different and not negative."""
    heads, blocks, size, width = pool_KBSH.shape
    pool_KBSH.view(heads, blocks * size, width).index_copy_(1, slots_T, x_TKH.transpose(0, 1))


def kv_store_triton(pool_KBSH: Tensor, x_TKH: Tensor, slots_T: Tensor) -> None:
    """Do `kv_store` with one program per token. `x_TKH` may be a slice of the fused projection.

    A token with NO_SLOT is skipped: it pads a captured step to its size. Raises ValueError
    if the blocks of a head are not contiguous.
    """
    heads, _, size, width = pool_KBSH.shape
    if pool_KBSH.stride()[1:] != (size * width, width, 1) or x_TKH.stride(2) != 1:
        raise ValueError("kv_store needs each head's blocks contiguous: (K, B, S, H)")
    strides = (pool_KBSH.stride(0), x_TKH.stride(0), x_TKH.stride(1))
    sizes = {"BLOCK_K": power_of_two(heads), "BLOCK_H": power_of_two(width)}
    _kv_store[(len(x_TKH),)](pool_KBSH, x_TKH, slots_T, *strides, heads, width, **sizes)


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
    if slot >= 0:  # not NO_SLOT
        k, h = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_H)[None, :]
        here = (k < heads) & (h < width)
        x_KH = tl.load(x + row * x_row + k * x_head + h, mask=here)
        # int64: a pool of 6,800 blocks of LLaMA-7B has 445 million keys in a layer, and a pool of
        # an H200's whole memory has more than 2**31.
        tl.store(pool + k.to(tl.int64) * pool_head + slot * width + h, x_KH, mask=here)
