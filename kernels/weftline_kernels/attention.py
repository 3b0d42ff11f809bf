"""Attention over the blocks of a KV cache, by a work list: a torch reference and the CPU path.

Partial results of a query are merged by log-sum-exp. Letters of the shapes:
R = packed query rows, N = query heads, K = KV heads, G = query heads per KV head, H = head size,
B = blocks of the pool, S = tokens per block, I = items, Q = queries of an item, L = tokens of an
item.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weftline_kernels.work_list import WorkItem, WorkList

# Attention of one layer: (q_RNH, keys_KBSH, values_KBSH) -> o_RNH. One per step, for all layers.
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# The log-sum-exp of no token. It is finite, because (-inf) - (-inf) would be NaN.
_NOTHING = -1e30


def attention_reference(
    work: WorkList, scale: float, *, window: int | None = None, cap: float | None = None
) -> Attention:
    """Return the reference: for each row, one softmax over the tokens of all its items.

    A row sees the last `window` tokens, itself among them. `cap` c makes c * tanh(s / c) of a score
    s.
    """

    def attend(q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor) -> Tensor:
        group = q_RNH.shape[1] // keys_KBSH.shape[0]
        wide = torch.promote_types(q_RNH.dtype, torch.float32)
        seen: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(work.rows)]
        for item in work.items:
            blocks = torch.from_numpy(item.blocks)
            keys_KLH, values_KLH = (
                keys_KBSH[:, blocks].flatten(1, 2),
                values_KBSH[:, blocks].flatten(1, 2),
            )
            for row, visible in zip(item.queries.tolist(), item.visible.tolist(), strict=True):
                seen[row][0].append(keys_KLH[:, :visible])
                seen[row][1].append(values_KLH[:, :visible])
        o_RNH = torch.empty_like(q_RNH)
        for row, (keys, values) in enumerate(seen):
            q_KGH = q_RNH[row].view(keys_KBSH.shape[0], group, -1).to(wide)
            keys_KLH, values_KLH = torch.cat(keys, 1).to(wide), torch.cat(values, 1).to(wide)
            if window is not None:
                keys_KLH, values_KLH = keys_KLH[:, -window:], values_KLH[:, -window:]
            scores_KGL = q_KGH @ keys_KLH.mT * scale
            if cap is not None:
                scores_KGL = cap * torch.tanh(scores_KGL / cap)
            o_KGH = scores_KGL.softmax(-1) @ values_KLH
            o_RNH[row] = o_KGH.flatten(0, 1).to(q_RNH.dtype)
        return o_RNH

    return attend


class TorchAttention:
    """The CPU path in torch: items of one query run as a padded batch, others as matrix products.

    The query heads of a KV head become rows of a product. F.scaled_dot_product_attention with
    enable_gqa takes 25 to 35 times as long for one bfloat16 query (12 ms, not 0.5 ms, at batch 32).
    """

    def __init__(
        self, work: WorkList, scale: float, *, window: int | None = None, cap: float | None = None
    ) -> None:
        self.rows = work.rows
        self.scale = scale
        self.cap = cap
        self.merged = work.merged
        # The first position that each row sees. No window is a very long one.
        since_R = torch.from_numpy(work.positions()) + 1 - (window or 1 << 62)
        self.single = [item for item in work.items if len(item.queries) == 1]
        self.wide = [_Wide(item, since_R) for item in work.items if len(item.queries) > 1]
        if self.single:
            most = max(len(item.blocks) for item in self.single)
            blocks_IB = torch.zeros(len(self.single), most, dtype=torch.int64)
            for i, item in enumerate(self.single):
                blocks_IB[i, : len(item.blocks)] = torch.from_numpy(item.blocks)
            self.blocks_IB = blocks_IB
            self.lengths_I = torch.tensor([int(item.visible[0]) for item in self.single])
            self.queries_I = torch.tensor([int(item.queries[0]) for item in self.single])
            starts_I = torch.tensor([item.start for item in self.single])
            self.since_I = since_R[self.queries_I] - starts_I
            self.hidden_IL: Tensor | None = None

    def __call__(self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor) -> Tensor:
        """Return the attention of one layer, (R, N, H), in the dtype of `q_RNH`."""
        kv_heads = keys_KBSH.shape[0]
        q_RKGH = q_RNH.view(self.rows, kv_heads, -1, q_RNH.shape[-1])
        merge = _Merge(q_RKGH) if self.merged else None
        o_RKGH = torch.empty_like(q_RKGH)
        for wide in self.wide:
            o_QKGH, lse_QKG = wide.attend(q_RKGH, keys_KBSH, values_KBSH, self.scale, self.cap)
            if merge is None:
                o_RKGH[wide.queries_Q] = o_QKGH
            else:
                merge.add(wide.queries_Q, o_QKGH, lse_QKG)
        if self.single:
            o_IKGH, lse_IKG = self._attend_single(q_RKGH, keys_KBSH, values_KBSH)
            if merge is None:
                o_RKGH[self.queries_I] = o_IKGH
            else:
                merge.add(self.queries_I, o_IKGH, lse_IKG)
        return (o_RKGH if merge is None else merge.result()).flatten(1, 2)

    def _attend_single(
        self, q_RKGH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> tuple[Tensor, Tensor]:
        items, most = self.blocks_IB.shape
        flat = self.blocks_IB.flatten()
        shape = (keys_KBSH.shape[0], items, most * keys_KBSH.shape[2], keys_KBSH.shape[3])
        keys_KILH = keys_KBSH.index_select(1, flat).view(shape)
        values_KILH = values_KBSH.index_select(1, flat).view(shape)
        if self.hidden_IL is None:
            tokens_1L = torch.arange(shape[2])[None, :]
            self.hidden_IL = tokens_1L >= self.lengths_I[:, None]
            self.hidden_IL |= tokens_1L < self.since_I[:, None]
        q_KIGH = q_RKGH[self.queries_I].transpose(0, 1)
        scores_KIGL = _capped((q_KIGH @ keys_KILH.mT).mul_(self.scale), self.cap)
        o_KIGH, lse_KIG = _softmax(scores_KIGL, self.hidden_IL[None, :, None, :], values_KILH)
        return o_KIGH.transpose(0, 1), lse_KIG.transpose(0, 1)


class _Wide:
    """An item with several queries: a shared prefix or a chunk of a prompt."""

    def __init__(self, item: WorkItem, since_R: Tensor) -> None:
        self.blocks = torch.from_numpy(item.blocks)
        self.length = item.length
        self.queries_Q = torch.from_numpy(item.queries)
        visible_Q = torch.from_numpy(item.visible)
        since_Q = since_R[self.queries_Q] - item.start
        self.hidden_QL: Tensor | None = None
        if int(visible_Q.min()) < item.length or int(since_Q.max()) > 0:
            tokens_1L = torch.arange(item.length)[None, :]
            self.hidden_QL = tokens_1L >= visible_Q[:, None]
            self.hidden_QL |= tokens_1L < since_Q[:, None]

    def attend(
        self,
        q_RKGH: Tensor,
        keys_KBSH: Tensor,
        values_KBSH: Tensor,
        scale: float,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Return (o_QKGH, lse_QKG) over this item's tokens."""
        heads, _, size, width = keys_KBSH.shape
        shape = (heads, len(self.blocks) * size, width)
        keys_KLH = keys_KBSH.index_select(1, self.blocks).view(shape)[:, : self.length]
        values_KLH = values_KBSH.index_select(1, self.blocks).view(shape)[:, : self.length]
        q_KGQH = q_RKGH[self.queries_Q].permute(1, 2, 0, 3)
        group, count = q_KGQH.shape[1], q_KGQH.shape[2]
        scores_KGQL = (q_KGQH.reshape(heads, group * count, width) @ keys_KLH.mT).mul_(scale)
        scores_KGQL = _capped(scores_KGQL.view(heads, group, count, self.length), cap)
        o_KGQH, lse_KGQ = _softmax(scores_KGQL, self.hidden_QL, values_KLH)
        return o_KGQH.permute(2, 0, 1, 3), lse_KGQ.permute(2, 0, 1)


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)


def _softmax(
    scores_XGL: Tensor, hidden: Tensor | None, values_XLH: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (o, lse) for scores whose last dimension is tokens. `hidden` masks some of them.

    If it masks all, o is 0 and lse is so small that the result has no weight in a merge.
    """
    if hidden is not None:
        scores_XGL = scores_XGL.masked_fill_(hidden, float("-inf"))
    wide = scores_XGL.to(torch.promote_types(scores_XGL.dtype, torch.float32))
    lse_XG = wide.logsumexp(-1).clamp_(min=_NOTHING)
    p_XGL = (wide - lse_XG[..., None]).exp_().to(values_XLH.dtype)
    if p_XGL.dim() > values_XLH.dim():  # (K, G, Q, L) over (K, L, H): fold G into the rows
        o = p_XGL.flatten(1, 2) @ values_XLH
        return o.view(*p_XGL.shape[:-1], values_XLH.shape[-1]), lse_XG
    return p_XGL @ values_XLH, lse_XG


class _Merge:
    """Adds partial results, each weighted by exp(its lse - the largest lse so far)."""

    def __init__(self, q_RKGH: Tensor) -> None:
        wide = torch.promote_types(q_RKGH.dtype, torch.float32)
        self.dtype = q_RKGH.dtype
        self.sum_RKGH = torch.zeros(q_RKGH.shape, dtype=wide)
        self.weight_RKG = torch.zeros(q_RKGH.shape[:-1], dtype=wide)
        self.top_RKG = torch.full(q_RKGH.shape[:-1], _NOTHING, dtype=wide)

    def add(self, rows_Q: Tensor, o_QKGH: Tensor, lse_QKG: Tensor) -> None:
        """Add one item's result for `rows_Q`, which holds no row twice."""
        before_QKG = self.top_RKG[rows_Q]
        top_QKG = torch.maximum(before_QKG, lse_QKG)
        keep_QKG, new_QKG = (before_QKG - top_QKG).exp(), (lse_QKG - top_QKG).exp()
        self.sum_RKGH[rows_Q] = (
            self.sum_RKGH[rows_Q] * keep_QKG[..., None] + o_QKGH * new_QKG[..., None]
        )
        self.weight_RKG[rows_Q] = self.weight_RKG[rows_Q] * keep_QKG + new_QKG
        self.top_RKG[rows_Q] = top_QKG

    def result(self) -> Tensor:
        """Return the normalised sum, (R, K, G, H), in the queries' dtype."""
        return (self.sum_RKGH / self.weight_RKG[..., None]).to(self.dtype)
