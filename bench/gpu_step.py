"""A decoder of random weights made of the kernels alone, whose decode step a CUDA graph replays.

The embedded engine has no path on CUDA yet: this stands for its step, without its scheduler and
sampling. R = sequences, C = hidden, N = query heads, K = KV heads, H = head size.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_kernels.attention_triton import attend, units
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.kv_store import kv_store_triton
from weftline_kernels.rms_norm import rms_norm_triton
from weftline_kernels.rope import rope_tables, rope_triton
from weftline_kernels.silu_mul import silu_mul_triton
from weftline_kernels.tiles import Tiles, cut, split_length
from weftline_kernels.work_list import Rows, build

PAGE = 16
NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Dims:
    """The sizes of a model; LLaMA-7B unless told."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 32
    width: int = 128
    mlp: int = 11008
    vocabulary: int = 32000

    @property
    def token_bytes(self) -> int:
        """KV cache of a token over all layers, in bfloat16."""
        return self.layers * 2 * self.kv_heads * self.width * 2


class DummyModel:
    """Weights of one size, all random, and `step`, which fills the cache and gives token ids."""

    def __init__(self, dims: Dims, device: torch.device) -> None:
        self.dims, self.device = dims, device
        torch.manual_seed(0)
        qkv = (dims.heads + 2 * dims.kv_heads) * dims.width
        self.layers = [
            (
                self._random(qkv, dims.hidden),
                self._random(dims.hidden, dims.heads * dims.width),
                self._random(2 * dims.mlp, dims.hidden),
                self._random(dims.hidden, dims.mlp),
            )
            for _ in range(dims.layers)
        ]
        self.embedding_VC = self._random(dims.vocabulary, dims.hidden)
        self.head_VC = self._random(dims.vocabulary, dims.hidden)
        self.norm_C = torch.ones(dims.hidden, device=device, dtype=torch.bfloat16)
        exponents = torch.arange(0, dims.width, 2, device=device) / dims.width
        self.frequencies_F = 1 / 10000**exponents

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads: all but the embedding, of which it reads rows."""
        weights = itertools.chain.from_iterable(self.layers)
        return sum(weight.nbytes for weight in weights) + self.head_VC.nbytes

    def step(
        self, tokens_R: Tensor, positions_R: Tensor, slots_R: Tensor, tiles: DeviceTiles,
        caches: Sequence[Tensor],
    ) -> Tensor:  # fmt: skip
        dims = self.dims
        cos_RH, sin_RH = rope_tables(positions_R, self.frequencies_F, torch.bfloat16)
        x_RC = F.embedding(tokens_R, self.embedding_VC)
        turned = dims.heads + dims.kv_heads
        for (qkv, out, gate_up, down), cache in zip(self.layers, caches, strict=True):
            normed_RC = rms_norm_triton(x_RC, self.norm_C, 1e-5)
            qkv_RNH = F.linear(normed_RC, qkv).view(len(x_RC), -1, dims.width)
            qk_RNH = rope_triton(qkv_RNH[:, :turned], cos_RH, sin_RH)
            kv_store_triton(cache[0], qk_RNH[:, dims.heads :], slots_R)
            kv_store_triton(cache[1], qkv_RNH[:, turned:], slots_R)
            o_RNH = attend(tiles, qk_RNH[:, : dims.heads], cache[0], cache[1], dims.width**-0.5)
            x_RC = x_RC + F.linear(o_RNH.flatten(1), out)
            normed_RC = rms_norm_triton(x_RC, self.norm_C, 1e-5)
            x_RC = x_RC + F.linear(silu_mul_triton(F.linear(normed_RC, gate_up)), down)
        return F.linear(rms_norm_triton(x_RC, self.norm_C, 1e-5), self.head_VC).argmax(-1)

    def _random(self, *shape: int) -> Tensor:
        empty = torch.empty(shape, device=self.device, dtype=torch.bfloat16)
        return empty.normal_(std=shape[-1] ** -0.5)


class Decode:
    """A batch of fixed capacity: `load` a step, `run` it; on CUDA a graph captured at first."""

    def __init__(self, model: DummyModel, parts: Sequence[Rows], *, shared: bool) -> None:
        """`parts` are the step with the most pages that will be loaded; page 0 is scratch."""
        dims, device = model.dims, model.device
        self.model, self.min_saved = model, 1 if shared else NEVER
        self.group = dims.heads // dims.kv_heads
        work = build(parts, PAGE, min_pages_saved=self.min_saved)
        self.split = split_length(work, dims.kv_heads, units(device), PAGE)
        most = self._cut(parts)
        capacity = Capacity(
            *(len(most.fields_TF), len(most.pages), len(most.queries_Q3)),
            *(len(parts), most.slots),
        )
        self.tiles = DeviceTiles(capacity, most.narrow_rows, most.wide_rows, device)
        zeros = torch.zeros(3, len(parts), dtype=torch.int64, device=device)
        self.tokens_R, self.positions_R, self.slots_R = zeros
        pages = 1 + max(max(part.pages) for part in parts)
        shape = (2, dims.kv_heads, pages, PAGE, dims.width)
        # Zeros give uniform attention, which takes the same time and stays finite.
        self.caches = [
            torch.zeros(shape, device=device, dtype=torch.bfloat16) for _ in range(dims.layers)
        ]
        self.graph: torch.cuda.CUDAGraph | None = None

    def _cut(self, parts: Sequence[Rows]) -> Tiles:
        work = build(parts, PAGE, min_pages_saved=self.min_saved)
        return cut(work, PAGE, self.group, self.split)

    def load(self, parts: Sequence[Rows]) -> None:
        """What the next `run` computes; a sequence left out writes to the scratch page."""
        rows = self.tiles.capacity.rows
        positions, slots = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        for i, part in enumerate(parts):
            positions[i] = part.start
            slots[i] = part.pages[part.start // PAGE] * PAGE + part.start % PAGE
        slots[len(parts) :] = np.arange(rows - len(parts)) % PAGE
        self.positions_R.copy_(torch.from_numpy(positions))
        self.slots_R.copy_(torch.from_numpy(slots))
        self.tiles.load(self._cut(parts))

    def run(self) -> None:
        """Enqueue the loaded step."""
        if self.graph is not None:
            self.graph.replay()
            return
        self._step()
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()

    def _step(self) -> None:
        inputs = (self.tokens_R, self.positions_R, self.slots_R)
        self.tokens_R.copy_(self.model.step(*inputs, self.tiles, self.caches))


def tables(
    prefix: int, totals: Sequence[int], *, copied: bool
) -> list[list[int]]:  # fmt: skip
    """Pages of sequences of `totals` tokens that share `prefix`, or each have a copy of it."""
    common = 0 if copied else prefix // PAGE
    used, found = 1 + common, []
    for total in totals:
        own = -(-total // PAGE) - common
        found.append([*range(1, 1 + common), *range(used, used + own)])
        used += own
    return found


def step_seconds(decode: Decode, parts: Sequence[Rows], repeat: int) -> float:
    """Median time of a step, the loading of its tiles left out."""
    decode.load(parts)
    decode.run()
    times = []
    for _ in range(repeat):
        synchronize(decode.model.device)
        start = time.perf_counter()
        decode.run()
        synchronize(decode.model.device)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeat // 2]


def fits(dims: Dims, pages: int, device: torch.device) -> bool:
    """Whether a cache of `pages` leaves room for a step beside it."""
    if device.type != "cuda":
        return True
    return dims.token_bytes * PAGE * pages < torch.cuda.mem_get_info(device)[0] - 4 * 2**30


def synchronize(device: torch.device) -> None:
    """Wait for the device, where there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize()
