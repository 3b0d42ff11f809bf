"""What a decoder layer does between its projections and its attention: norms of the heads, rotary
positions, and keys and values into the KV cache.

T = packed tokens, N = query heads, K = KV heads, H = head size, R = rotated components of a head,
B = blocks of the pool, S = tokens per block. X = N + 2K heads: queries, keys, values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weftline_kernels.jit import kernel, power_of_two, tl
from weftline_kernels.kv_store import kv_store, kv_store_reference
from weftline_kernels.rms_norm import rms_norm, rms_norm_reference
from weftline_kernels.rope import rope

# Norms of the queries' and of the keys' heads, and their epsilon.
Norms = tuple[Tensor, Tensor, float]

# Heads of a token that a program computes. LLaMA-7B's 96 take 12 programs.
HEADS = 8


def heads_at_a_time(dtype: torch.dtype) -> int:
    """Of a token, by one program. In float32 eight spill registers on sm_80."""
    return HEADS if dtype.itemsize == 2 else HEADS // 2


def rope_store_reference(
    qkv_TXH: Tensor, cos_TR: Tensor, sin_TR: Tensor, norms: Norms | None,
    keys_KBSH: Tensor, values_KBSH: Tensor, slots_T: Tensor,
) -> Tensor:  # fmt: skip
    """The reference for `rope_store`: head by head, in float32. It skips NO_SLOT."""
    kv_heads, wide = len(keys_KBSH), qkv_TXH.float()
    q_TNH, k_TKH, v_TKH = (
        wide[:, : -2 * kv_heads], wide[:, -2 * kv_heads : -kv_heads], qkv_TXH[:, -kv_heads:],
    )  # fmt: skip
    if norms is not None:
        q_norm_H, k_norm_H, eps = norms
        q_TNH = rms_norm_reference(q_TNH.to(qkv_TXH.dtype), q_norm_H, eps).float()
        k_TKH = rms_norm_reference(k_TKH.to(qkv_TXH.dtype), k_norm_H, eps).float()

    def turned(x_TNH: Tensor) -> Tensor:
        x_TNH, width = x_TNH.clone(), cos_TR.shape[1]
        turns_TNR = rope(x_TNH[..., :width], cos_TR.float(), sin_TR.float())
        x_TNH[..., :width] = turns_TNR
        return x_TNH.to(qkv_TXH.dtype)

    kv_store_reference(keys_KBSH, turned(k_TKH), slots_T)
    kv_store_reference(values_KBSH, v_TKH, slots_T)
    return turned(q_TNH)


def rope_store(
    qkv_TXH: Tensor, cos_TR: Tensor, sin_TR: Tensor, norms: Norms | None,
    keys_KBSH: Tensor, values_KBSH: Tensor, slots_T: Tensor,
) -> Tensor:  # fmt: skip
    """Return the rotated queries (T, N, H), and store the rotated keys and the values.

    The tables come from `rope_tables`. If they are narrower than a head, the components behind R
    stay as they are. `slots_T` (int64) are all different and not negative.
    """
    kv_heads, width = len(keys_KBSH), cos_TR.shape[1]
    qk_TYH = qkv_TXH[:, :-kv_heads]
    if norms is not None:
        q_norm_H, k_norm_H, eps = norms
        sides = ((qk_TYH[:, :-kv_heads], q_norm_H), (qk_TYH[:, -kv_heads:], k_norm_H))
        qk_TYH = torch.cat([rms_norm(side, norm_H, eps) for side, norm_H in sides], dim=1)
    turned_TYH = rope(qk_TYH[..., :width], cos_TR, sin_TR)
    if width < qk_TYH.shape[2]:
        turned_TYH = torch.cat((turned_TYH, qk_TYH[..., width:]), dim=-1)
    kv_store(keys_KBSH, turned_TYH[:, -kv_heads:], slots_T)
    kv_store(values_KBSH, qkv_TXH[:, -kv_heads:], slots_T)
    return turned_TYH[:, :-kv_heads]


def rope_store_triton(
    qkv_TXH: Tensor, cos_TR: Tensor, sin_TR: Tensor, norms: Norms | None,
    keys_KBSH: Tensor, values_KBSH: Tensor, slots_T: Tensor,
) -> Tensor:  # fmt: skip
    """Do `rope_store` with one kernel, which reads every head once.

    A token with NO_SLOT is not stored: it pads a captured step to its size. The result is rounded
    once after the norm and once at the end, and by the torch path once more. Raises ValueError if
    the blocks of a head are not contiguous.
    """
    kv_heads, _, size, width = keys_KBSH.shape
    contiguous = (size * width, width, 1)
    if keys_KBSH.stride() != values_KBSH.stride() or keys_KBSH.stride()[1:] != contiguous:
        raise ValueError("rope_store needs each head's blocks contiguous: (K, B, S, H)")
    tokens, total, _ = qkv_TXH.shape
    q_TNH = torch.empty(
        (tokens, total - 2 * kv_heads, width), dtype=qkv_TXH.dtype, device=qkv_TXH.device
    )
    q_norm_H, k_norm_H, eps = norms or (cos_TR, cos_TR, 0.0)  # not read without norms
    at_a_time = heads_at_a_time(qkv_TXH.dtype)
    _rope_store[(tokens, -(-total // at_a_time))](
        qkv_TXH,
        cos_TR,
        sin_TR,
        q_norm_H,
        k_norm_H,
        q_TNH,
        keys_KBSH,
        values_KBSH,
        slots_T,
        eps,
        qkv_TXH.stride(0),
        keys_KBSH.stride(0),
        total - 2 * kv_heads,
        kv_heads,
        width,
        cos_TR.shape[1],
        NORMED=norms is not None,
        BLOCK_X=at_a_time,
        BLOCK_H=power_of_two(width),
    )
    return q_TNH


@kernel
def _rope_store(
    qkv: tl.tensor, cos: tl.tensor, sin: tl.tensor, q_norm: tl.tensor, k_norm: tl.tensor,
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor, eps: tl.tensor,
    row_stride: tl.tensor, pool_head: tl.tensor, heads: tl.tensor, kv_heads: tl.tensor,
    width: tl.tensor, turned: tl.tensor, NORMED: tl.constexpr, BLOCK_X: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:  # fmt: skip
    """Compute BLOCK_X heads of one token. They may be queries, keys and values together."""
    row = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * BLOCK_X + tl.arange(0, BLOCK_X)[:, None]
    h = tl.arange(0, BLOCK_H)[None, :]
    here = (x < heads + 2 * kv_heads) & (h < width)
    is_q, is_v = x < heads, x >= heads + kv_heads
    # Component h is turned with the one that is half the turned width away.
    half = turned // 2
    other = tl.where(h < half, h + half, tl.where(h < turned, h - half, h))
    at = qkv + row * row_stride + x * width
    narrow = q.dtype.element_ty
    x_XH = tl.load(at + h, mask=here, other=0.0).to(tl.float32)
    other_XH = tl.load(at + other, mask=here, other=0.0).to(tl.float32)
    if NORMED:
        root = tl.rsqrt(tl.sum(x_XH * x_XH, axis=1) / width + eps)[:, None]
        inside = h < width
        q_H = tl.load(q_norm + h, mask=inside, other=0.0).to(tl.float32)
        k_H = tl.load(k_norm + h, mask=inside, other=0.0).to(tl.float32)
        q_other_H = tl.load(q_norm + other, mask=inside, other=0.0).to(tl.float32)
        k_other_H = tl.load(k_norm + other, mask=inside, other=0.0).to(tl.float32)
        normed = (x_XH * root * tl.where(is_q, q_H, k_H)).to(narrow).to(tl.float32)
        normed_other = other_XH * root * tl.where(is_q, q_other_H, k_other_H)
        x_XH = tl.where(is_v, x_XH, normed)
        other_XH = tl.where(is_v, other_XH, normed_other.to(narrow).to(tl.float32))
    # In the first half the table's sine is negated.
    cos_H = tl.load(cos + row * turned + h, mask=h < turned, other=1.0).to(tl.float32)
    sin_H = tl.load(sin + row * turned + h, mask=h < turned, other=0.0).to(tl.float32)
    o_XH = tl.where(is_v, x_XH, x_XH * cos_H + other_XH * sin_H).to(narrow)
    tl.store(q + (row * heads + x) * width + h, o_XH, mask=here & is_q)
    slot = tl.load(slots + row)
    if slot >= 0:  # not NO_SLOT
        # int64: a pool of an H200's whole memory has more than 2**31 keys in a layer.
        k = (x - heads).to(tl.int64) * pool_head + slot * width + h
        tl.store(keys + k, o_XH, mask=here & (x >= heads) & (x < heads + kv_heads))
        v = (x - heads - kv_heads).to(tl.int64) * pool_head + slot * width + h
        tl.store(values + v, o_XH, mask=here & is_v)
