"""Stand-ins for the attention libraries of a GPU, with the interfaces that they document.

Each checks the shapes, types and strides that the library demands, and computes by softmax. On a
pretended device it reads the values of tensors when its kernel runs, as in the replay of a graph.
The libraries also demand 16 bits, which the stand-ins do not: tokens are compared in float32.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from tests.pretend import Pretending, inner
from weftline_kernels.libraries import FLASH_ATTENTION, FLASHINFER, TORCH, AttentionLibrary

ALL = (FLASHINFER, FLASH_ATTENTION, TORCH)


class Asked(NamedTuple):
    """What a stand-in was called for: its function, and the rows of queries."""

    function: str
    rows: int


def stand_in(
    patch: pytest.MonkeyPatch, library: AttentionLibrary, device: Pretending | None = None
) -> list[Asked]:
    """Install the stand-in of a library; its calls are added to the result."""
    asked: list[Asked] = []
    if library is FLASHINFER:
        module = ModuleType("flashinfer")
        for base in (BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper):
            given = {"asked": asked, "device": device}
            setattr(module, base.__name__, type(base.__name__, (base,), given))
        patch.setitem(sys.modules, "flashinfer", module)
    elif library is FLASH_ATTENTION:
        module = ModuleType("flash_attn_interface")
        module.flash_attn_with_kvcache = (  # type: ignore[attr-defined]
            lambda *args, **words: flash_attn_with_kvcache(asked, device, *args, **words)
        )
        patch.setitem(sys.modules, "flash_attn_interface", module)
    else:
        real = inspect.signature(varlen.varlen_attn)

        def varlen_attn(*args: Any, **words: Any) -> Any:
            bound = real.bind(*args, **words)  # as this torch has it
            bound.apply_defaults()
            return paged_varlen(asked, device, **bound.arguments)

        patch.setattr(varlen, "varlen_attn", varlen_attn)
    return asked


class Sequences(NamedTuple):
    """What a kernel reads of a step: the first row of each sequence, its tokens and its pages."""

    starts: list[int]
    lengths: list[int]
    tables: list[list[int]]


def launch(
    device: Pretending | None,
    q: Tensor,
    pool: tuple[Tensor, Tensor],
    read: Callable[[], Sequences],
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attention of packed queries to sequences in pages (P, S, K, H), and the natural log-sum-exp
    (R, N), by a kernel that reads the sequences when it runs."""
    o, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)

    def run() -> None:
        found = attention(inner(q), (inner(pool[0]), inner(pool[1])), read(), scale, causal)
        inner(o).copy_(found[0])
        inner(lse).copy_(found[1])

    if device is None:
        run()
    else:
        device.launch(run, "library")
    return o, lse


def attention(
    q: Tensor, pool: tuple[Tensor, Tensor], sequences: Sequences, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """What `launch` computes. A causal mask is aligned to the last row and the last token."""
    size, kv_heads = pool[0].shape[1:3]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    starts, lengths, tables = sequences
    for i, length in enumerate(lengths):
        assert 0 < length <= len(tables[i]) * size
        pages = tables[i][: -(-length // size)]
        keys, values = (one[pages].flatten(0, 1)[:length].double() for one in pool)
        rows = slice(starts[i], starts[i + 1])
        count = rows.stop - rows.start
        grouped = q[rows].unflatten(1, (kv_heads, -1)).double()
        scores = torch.einsum("qkgh,lkh->qkgl", grouped, keys) * scale
        if causal:
            last = torch.arange(length - count, length)[:, None]
            hidden = torch.arange(length) > last
            scores.masked_fill_(hidden[:, None, None], float("-inf"))
        o[rows] = torch.einsum("qkgl,lkh->qkgh", scores.softmax(-1), values).flatten(1, 2).to(o)
        lse[rows] = scores.logsumexp(-1).flatten(1).to(lse)
    return o, lse


def int32(tensor: Tensor, *shape: int) -> Tensor:
    """Check a tensor of whole numbers."""
    assert tensor.dtype == torch.int32 and tensor.shape == shape and tensor.is_contiguous()
    return tensor


class _Wrapper:
    """What both wrappers of FlashInfer have in common: they plan a step, and run it for a layer."""

    asked: list[Asked]
    device: Pretending | None

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False
    ) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.numel() == 128 << 20
        assert kv_layout in ("NHD", "HND")
        self._layout, self._fixed = kv_layout, use_cuda_graph

    def _planned(
        self, starts: Tensor, tables: Tensor, blocks: Tensor, last: Tensor,
        sizes: tuple[int, int, int, int], causal: bool, words: dict[str, Any],
    ) -> None:  # fmt: skip
        count = len(last)
        int32(starts, count + 1), int32(tables, count + 1), int32(last, count)
        int32(blocks, int(tables[-1]))
        # The host plans with these, so that it does not wait for the device.
        assert {one.device.type for one in (starts, tables, last)} == {"cpu"}
        self._heads, self._kv_heads, self._width, size = sizes
        assert self._heads % self._kv_heads == 0
        assert bool((last >= 1).all()) and bool((last <= size).all())
        self._size, self._causal, self._scale = size, causal, words.pop("sm_scale")
        self._types = words.pop("q_data_type"), words.pop("kv_data_type")
        assert not words, f"FlashInfer has no {list(words)}"
        self._rows = int(starts[-1])
        self._keep(starts, tables, blocks, last)

    def _keep(self, starts: Tensor, tables: Tensor, blocks: Tensor, last: Tensor) -> None:
        """Keep what the kernel reads. Without a graph each plan has tensors of its own."""
        self._read = starts, tables, blocks, last

    def _sequences(self) -> Sequences:
        starts, tables, blocks, last = map(inner, self._read)
        ends = tables.tolist()
        return Sequences(
            starts.tolist(),
            ((tables[1:] - tables[:-1] - 1) * self._size + last).tolist(),
            [blocks[a:b].tolist() for a, b in itertools.pairwise(ends)],
        )

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, return_lse: bool = False
    ) -> Any:
        self.asked.append(Asked(type(self).__name__, len(q)))
        assert q.shape == (self._rows, self._heads, self._width)
        assert (q.dtype, paged_kv_cache[0].dtype) == self._types
        assert self._layout == "HND"
        for one in paged_kv_cache:
            assert one.shape[1:] == (self._kv_heads, self._size, self._width)
            assert one.stride(3) == 1
        pool = paged_kv_cache[0].transpose(1, 2), paged_kv_cache[1].transpose(1, 2)
        o, lse = launch(self.device, q, pool, self._sequences, self._scale, self._causal)
        return (o, lse * math.log2(math.e)) if return_lse else o


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's wrapper for sequences of any number of rows."""

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        page_size: int, *, causal: bool = False, **words: Any,
    ) -> None:  # fmt: skip
        sizes = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        parts = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self._planned(*parts, sizes, causal, words)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's wrapper for sequences of one row, with buffers that a graph keeps."""

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        use_tensor_cores: bool = False, paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        assert use_cuda_graph and paged_kv_indices_buffer is not None
        assert paged_kv_indptr_buffer is not None and paged_kv_last_page_len_buffer is not None
        self._count = len(paged_kv_last_page_len_buffer)
        int32(paged_kv_indptr_buffer, self._count + 1)
        self._room = len(int32(paged_kv_indices_buffer, len(paged_kv_indices_buffer)))
        self._buffers = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim: int, page_size: int, **words: Any,
    ) -> None:  # fmt: skip
        assert len(last_page_len) == self._count, "the batch size of a graph is fixed"
        assert len(indices) <= self._room
        starts = torch.arange(self._count + 1, dtype=torch.int32)
        sizes = num_qo_heads, num_kv_heads, head_dim, page_size
        self._planned(starts, indptr, indices, last_page_len, sizes, False, words)

    def _keep(self, starts: Tensor, tables: Tensor, blocks: Tensor, last: Tensor) -> None:
        """A graph reads the buffers that it was captured with."""
        indptr, indices, lengths = self._buffers
        indptr.copy_(tables, non_blocking=True)
        indices[: len(blocks)].copy_(blocks, non_blocking=True)
        lengths.copy_(last, non_blocking=True)
        self._read = starts, indptr, indices, lengths


def flash_attn_with_kvcache(
    asked: list[Asked], device: Pretending | None,
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: None = None,
    v: None = None, qv: None = None, rotary_cos: None = None, rotary_sin: None = None,
    cache_seqlens: Tensor | None = None, cache_batch_idx: None = None, cache_leftpad: None = None,
    page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: None = None, max_seqlen_q: int | None = None, rotary_seqlens: None = None,
    q_descale: None = None, k_descale: None = None, v_descale: None = None,
    softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
    rotary_interleaved: bool = True, scheduler_metadata: None = None, num_splits: int = 0,
    pack_gqa: None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """FlashAttention 3 on a cache in pages of any size."""
    asked.append(Asked("flash_attn_with_kvcache", len(q)))
    assert cache_seqlens is not None and page_table is not None and cu_seqlens_q is not None
    read = _paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q)
    assert softmax_scale is not None and causal
    o, lse = launch(device, q, (k_cache, v_cache), read, softmax_scale, causal)
    return (o, lse.T.contiguous(), None, None) if return_softmax_lse else o


def paged_varlen(
    asked: list[Asked], device: Pretending | None,
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor,
    cu_seq_k: None, max_q: int, max_k: int, *, return_aux: Any, scale: float,
    window_size: tuple[int, int], enable_gqa: bool, seqused_k: Tensor, block_table: Tensor,
    num_splits: None,
) -> Any:  # fmt: skip
    """torch's attention of variable length, on a cache in pages."""
    asked.append(Asked("varlen_attn", len(query)))
    assert window_size == (-1, 0), "causal"
    assert enable_gqa or query.shape[1] == key.shape[2]
    assert cu_seq_k is None and max_k == block_table.shape[1] * key.shape[1]
    read = _paged(query, key, value, cu_seq_q, seqused_k, block_table, max_q)
    o, lse = launch(device, query, (key, value), read, scale, True)
    return (o, lse.T.contiguous()) if return_aux.lse else o


def _paged(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, lengths: Tensor, table: Tensor,
    most: int | None,
) -> Callable[[], Sequences]:  # fmt: skip
    """Check the arguments of a function that takes a table of pages. Its kernel reads them."""
    count = len(lengths)
    int32(starts, count + 1), int32(lengths, count)
    assert table.dtype == torch.int32 and table.shape[0] == count and table.stride(1) == 1
    assert keys.shape == values.shape and keys.shape[3] == q.shape[2]
    assert q.shape[1] % keys.shape[2] == 0 and q.dtype == keys.dtype == values.dtype
    assert q.stride(2) == keys.stride(3) == values.stride(3) == 1

    def read() -> Sequences:
        begins = inner(starts)
        assert int(begins[-1]) == len(q) and most == int((begins[1:] - begins[:-1]).max())
        return Sequences(begins.tolist(), inner(lengths).tolist(), inner(table).tolist())

    return read
