"""Stand-ins in torch for our Triton kernels, which read the same arguments and buffers.

The interpreter takes 10 ms for a tile and a head, so it runs small models only. With these a real
model runs by our launchers on a pretended device. tests/kernels compares each with its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from weftline_kernels import (
    attention_triton,
    kv_store,
    rms_norm,
    rope_store,
    silu_mul,
)
from weftline_kernels.kv_store import NO_SLOT
from weftline_kernels.rms_norm import add_rms_norm_reference, rms_norm_reference
from weftline_kernels.silu_mul import silu_mul_reference
from weftline_kernels.tiles import FIELDS


def attend(
    q: Tensor, keys: Tensor, values: Tensor, o: Tensor, part: Tensor, lse: Tensor,
    counts: Tensor, fields: Tensor, blocks: Tensor, queries: Tensor, scale: float, *strides: int,
    KV_HEADS: int, GROUP: int, WIDE: int, NARROW: int, **constants: Any,
) -> None:  # fmt: skip
    """`attention_triton._attend`: every tile, for all KV heads together."""
    wide, past = counts[:2].tolist()
    for tile, row in enumerate(fields.view(-1)[: past * FIELDS].view(-1, FIELDS).tolist()):
        block, begin, length, query, count, number = row
        assert count * GROUP <= (WIDE if tile < wide else NARROW)
        first, size = blocks[block:], keys.shape[2]
        used = first[: -(-length // size)].long()
        keys_KLH, values_KLH = (
            one[:, used].flatten(1, 2)[:, :length].double() for one in (keys, values)
        )
        row_Q, visible_Q, slot_Q = queries.view(-1)[3 * query : 3 * (query + count)].view(-1, 3).T
        q_QKGH = q[row_Q.long()].unflatten(1, (KV_HEADS, GROUP)).double()
        score_QKGL = torch.einsum("qkgh,klh->qkgl", q_QKGH, keys_KLH) * scale
        at_L = torch.arange(length) + begin
        hidden = (at_L[None] >= visible_Q[:, None])[:, None, None]
        score_QKGL.masked_fill_(hidden, float("-inf"))
        top_QKG1 = score_QKGL.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        weight_QKGL = torch.exp2(score_QKGL - top_QKG1)
        sum_QKG1 = weight_QKGL.sum(-1, keepdim=True)
        shares_QKGL = weight_QKGL / sum_QKG1.clamp(min=1e-300)
        found_QNH = torch.einsum("qkgl,klh->qkgh", shares_QKGL, values_KLH).flatten(1, 2)
        lse_QN = (top_QKG1 + sum_QKG1.log2()).flatten(1)
        alone = slot_Q < 0
        o[row_Q[alone].long()] = found_QNH[alone].to(o.dtype)
        put = (slot_Q[~alone] + number).long()
        part[put], lse[put] = found_QNH[~alone].to(part.dtype), lse_QN[~alone].to(lse.dtype)


def merge(
    part: Tensor, lse: Tensor, o: Tensor, first: Tensor, heads: int, width: int, **constants: int
) -> None:
    """`attention_triton._merge`: each row's slots, weighted by exp2 of their log-sum-exp."""
    begins = first.tolist()
    for row in range(min(len(o), len(begins) - 1)):
        slots = slice(begins[row], begins[row + 1])
        if slots.stop > slots.start:
            weight_UN = torch.exp2(lse[slots] - lse[slots].amax(0).nan_to_num(neginf=-1e30))
            weight_UN = weight_UN / weight_UN.sum(0)
            o[row] = (weight_UN[..., None] * part[slots]).sum(0).to(o.dtype)


def store(pool: Tensor, x: Tensor, slots: Tensor, *strides: int, **constants: int) -> None:
    """`kv_store._kv_store`: the tokens that have a slot."""
    kept = slots != NO_SLOT
    flat_KXH = pool.flatten(1, 2)
    flat_KXH[:, slots[kept]] = x[kept].transpose(0, 1)


def norm(
    x: Tensor, more: Tensor, weight: Tensor, added: Tensor, o: Tensor, stride: int, channels: int,
    eps: float, *, ADDED: bool, **constants: int,
) -> None:  # fmt: skip
    """`rms_norm._rms_norm`, with the sum before it or without."""
    if ADDED:
        sums, normed = add_rms_norm_reference(x, more, weight, eps)
        added.copy_(sums)
        o.copy_(normed)
    else:
        o.copy_(rms_norm_reference(x, weight, eps))


def turn_and_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor, k_norm: Tensor, q: Tensor,
    keys: Tensor, values: Tensor, slots: Tensor, eps: float, row_stride: int, pool_head: int,
    heads: int, kv_heads: int, width: int, turned: int, *, NORMED: bool, **constants: int,
) -> None:  # fmt: skip
    """`rope_store._rope_store`: the torch path, which stores the tokens that have a slot."""
    kept = slots != NO_SLOT
    norms = (q_norm, k_norm, eps) if NORMED else None

    def computed(rows: Tensor, slots_T: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
        parts = qkv[rows], cos[rows], sin[rows], norms, *pools, slots_T
        return rope_store.rope_store(*parts)

    count = int((~kept).sum())
    # Tokens without a slot are stored in a pool that nobody reads.
    scratch = keys.new_zeros(len(keys), count, 1, width), keys.new_zeros(len(keys), count, 1, width)
    q[kept] = computed(kept, slots[kept], (keys, values))
    q[~kept] = computed(~kept, torch.arange(count), scratch)


def gate(x: Tensor, o: Tensor, stride: int, channels: int, **constants: int) -> None:
    """`silu_mul._silu_mul`."""
    o.copy_(silu_mul_reference(x))


# Each kernel by the module that launches it, and its stand-in.
KERNELS: dict[tuple[ModuleType, str], Callable[..., None]] = {
    (attention_triton, "_attend"): attend,
    (attention_triton, "_merge"): merge,
    (kv_store, "_kv_store"): store,
    (rms_norm, "_rms_norm"): norm,
    (rope_store, "_rope_store"): turn_and_store,
    (silu_mul, "_silu_mul"): gate,
}


class StandIn:
    """A stand-in that is launched as a kernel of Triton is: `kernel[grid](...)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, *args: Any, num_warps: int = 0, num_stages: int = 0, **constants: Any) -> None:
        self._function(*args, **constants)
