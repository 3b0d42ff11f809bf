"""Attention to what each sequence has alone by a library: one interface and an adapter for each.

The libraries read the KV cache as it is, by a view with the blocks first. Letters of the shapes:
R = packed query rows, N = query heads, K = KV heads, H = head size, B = blocks of the pool,
S = tokens per block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
import torch.nn.attention
from torch import Tensor

from weftline_kernels.libraries import FLASH_ATTENTION, FLASHINFER, TORCH, AttentionLibrary
from weftline_kernels.own_rows import OwnRows
from weftline_kernels.staging import Staging
from weftline_kernels.tiles import Ints32

# What FlashInfer recommends for the partial results of split contexts.
WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention of a model is like, the same in all layers."""

    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    scale: float


@dataclass(frozen=True, slots=True)
class OwnRoom:
    """The size of a captured step: `rows` sequences of one row, with `blocks` blocks each at most.

    A graph keeps the addresses of buffers, so they have this size from the start.
    """

    rows: int
    blocks: int


class OwnAttention(Protocol):
    """Attention to the own part of steps. A log-sum-exp times `to_log2` is one of base 2."""

    to_log2: float

    def load(self, own: OwnRows) -> None:
        """Prepare for a step, for all layers. It does not wait for the device's current work. In a
        room the step has exactly its rows."""
        ...

    def __call__(
        self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The attention of one layer (R, N, H), in the queries' type, and its log-sum-exp (R, N)
        in float32."""
        ...


class FlashInferAttention:
    """FlashInfer, whose host code plans each step. Its log-sum-exp has base 2."""

    to_log2 = 1.0

    def __init__(self, shape: AttentionShape, room: OwnRoom | None, device: torch.device) -> None:
        import flashinfer

        self._shape = shape
        self._room = room
        self._was_read: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._was_read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        workspace = _workspace(device)
        self._wrapper: Any
        if room is None:
            self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
            return
        self._blocks = Staging(room.rows * room.blocks, torch.int32, device)
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=torch.zeros(room.rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=self._blocks.tensor,
            paged_kv_last_page_len_buffer=torch.ones(room.rows, dtype=torch.int32, device=device),
        )

    def load(self, own: OwnRows) -> None:
        shape = self._shape
        if self._was_read is not None:
            self._was_read.synchronize()  # a plan is copied from host memory that is used again
        in_last = (own.lengths - 1) % shape.block_size + 1
        sizes = (shape.heads, shape.kv_heads, shape.head_size, shape.block_size)
        options = {"sm_scale": shape.scale, "q_data_type": shape.dtype, "kv_data_type": shape.dtype}
        starts, tables, last = map(torch.from_numpy, (own.starts, own.tables, in_last))
        if self._room is None:
            blocks = torch.from_numpy(own.blocks)
            self._wrapper.plan(starts, tables, blocks, last, *sizes, causal=True, **options)
        else:
            self._blocks.send([(0, own.blocks)], len(own.blocks))
            blocks = self._blocks.tensor[: len(own.blocks)]
            self._wrapper.plan(tables, blocks, last, *sizes, **options)
        if self._was_read is not None:
            self._was_read.record()

    def __call__(
        self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> tuple[Tensor, Tensor]:
        cache = keys_KBSH.transpose(0, 1), values_KBSH.transpose(0, 1)
        o_RNH, lse_RN = self._wrapper.run(q_RNH, cache, return_lse=True)
        return o_RNH, lse_RN


class TableAttention:
    """What FlashAttention 3 and torch take: the sequences' starts, lengths and a table of blocks,
    on the device. Their log-sum-exp has base e, and the shape (N, R)."""

    to_log2 = math.log2(math.e)

    def __init__(self, shape: AttentionShape, room: OwnRoom | None, device: torch.device) -> None:
        self._scale = shape.scale
        self._block_size = shape.block_size
        self._room = room
        self._device = device
        self._most_queries = 1
        if room is not None:
            rows = room.rows
            # The table comes last, with as many columns as the step needs.
            self._staging = Staging(2 * rows + 1 + rows * room.blocks, torch.int32, device)
            self._starts, self._lengths = self._heads(self._staging, rows)
            self._table = torch.zeros(rows, room.blocks, dtype=torch.int32, device=device)

    def load(self, own: OwnRows) -> None:
        table, count = own.table(), len(own.lengths)
        parts: tuple[Ints32, ...] = (own.starts, own.lengths, table.ravel())
        offsets = (0, count + 1, 2 * count + 1)
        size = 2 * count + 1 + table.size
        self._most_queries = own.most_queries
        if self._room is None:
            staging = Staging(size, torch.int32, self._device)
            self._starts, self._lengths = self._heads(staging, count)
        else:
            staging = self._staging
        staging.send(zip(offsets, parts, strict=True), size)
        sent = staging.tensor[2 * count + 1 : size].view(table.shape)
        if self._room is None:
            self._table = sent
        else:
            self._table[:, : table.shape[1]].copy_(sent)

    @staticmethod
    def _heads(staging: Staging, count: int) -> tuple[Tensor, Tensor]:
        return staging.tensor[: count + 1], staging.tensor[count + 1 : 2 * count + 1]


class FlashAttention(TableAttention):
    """FlashAttention 3, whose blocks may have any size."""

    def __call__(
        self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> tuple[Tensor, Tensor]:
        import flash_attn_interface

        o_RNH, lse_NR, *_ = flash_attn_interface.flash_attn_with_kvcache(
            q_RNH,
            keys_KBSH.permute(1, 2, 0, 3),
            values_KBSH.permute(1, 2, 0, 3),
            cache_seqlens=self._lengths,
            page_table=self._table,
            cu_seqlens_q=self._starts,
            max_seqlen_q=self._most_queries,
            softmax_scale=self._scale,
            causal=True,
            return_softmax_lse=True,
        )
        return o_RNH, lse_NR.transpose(0, 1)


class TorchVarlen(TableAttention):
    """torch's attention of variable length, by the FlashAttention that is active in torch."""

    def __call__(
        self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> tuple[Tensor, Tensor]:
        from torch.nn.attention import varlen

        o_RNH, lse_NR = varlen.varlen_attn(
            q_RNH,
            keys_KBSH.permute(1, 2, 0, 3),
            values_KBSH.permute(1, 2, 0, 3),
            self._starts,
            None,
            self._most_queries,
            self._table.shape[1] * self._block_size,
            return_aux=varlen.AuxRequest(lse=True),
            scale=self._scale,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=self._lengths,
            block_table=self._table,
        )
        return o_RNH, lse_NR.transpose(0, 1)


Made = Callable[[AttentionShape, OwnRoom | None, torch.device], OwnAttention]
ADAPTERS: dict[AttentionLibrary, Made] = {
    FLASHINFER: FlashInferAttention,
    FLASH_ATTENTION: FlashAttention,
    TORCH: TorchVarlen,
}


def refusal(library: AttentionLibrary, shape: AttentionShape) -> str:
    """Why an installed library cannot compute this; empty if it may."""
    if shape.dtype not in (torch.bfloat16, torch.float16):
        return f"it does not compute in {str(shape.dtype).removeprefix('torch.')}"
    if library is FLASHINFER and shape.head_size not in (64, 128, 256):
        return f"it has no kernel for heads of {shape.head_size}"
    if shape.head_size % 8 or shape.head_size > 256:
        return f"it has no kernel for heads of {shape.head_size}"
    if library is TORCH and shape.block_size % 256 and not _newer_flash_is_active():
        return f"FlashAttention 2 reads blocks of 256 tokens, and ours have {shape.block_size}"
    return ""


def _newer_flash_is_active() -> bool:
    """Whether torch calls FlashAttention 3 or 4, which somebody has to activate."""
    found = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    return found is not None and found() is not None


# By device, for as long as a wrapper of FlashInfer holds it.
_workspaces: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


def _workspace(device: torch.device) -> Tensor:
    """FlashInfer's partial results. All its wrappers share them, because they run in turn."""
    found = _workspaces.get(device)
    if found is None:
        found = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        _workspaces[device] = found
    return found
