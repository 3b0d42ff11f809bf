"""The interface of a model, and the common base of the decoders in torch.

T = packed tokens, N = query heads, K = KV heads, H = head size, V = vocabulary, L = layers,
P = KV blocks, S = tokens a block, R = rows whose logits are wanted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_kernels.attention import Attention, TorchAttention
from weftline_kernels.operations import TORCH, Operations
from weftline_kernels.work_list import MIN_BLOCKS_SAVED, WorkList

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Late:
    """The tokens of a step that are on the device alone: those in the rows `rows_L` are the tokens
    `from_L` of `tokens_R`, which the last step has sampled."""

    rows_L: npt.NDArray[np.int64]
    from_L: npt.NDArray[np.int64]
    tokens_R: Tensor


@dataclass(frozen=True, slots=True)
class StepInput:
    """The tokens of a step: ids, positions and KV slots (T), and the rows to sample from (R).

    Only a model that `overlaps` gets tokens that are `late`.
    """

    tokens_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    rows_R: Tensor
    work: WorkList
    late: Late | None = None


class Model(Protocol):
    """A forward pass over a KV cache. The model chooses the layout of the cache, but dimension 3 is
    the KV blocks. Tree attention shares a prefix if that saves reading `min_blocks_saved` blocks
    (see work_list.build)."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def min_blocks_saved(self) -> int: ...

    @property
    def overlaps(self) -> bool:
        """Whether `forward` returns before the step is computed, so that the next step can be
        prepared meanwhile."""
        ...

    def forward(self, step: StepInput, cache: Tensor, /) -> Tensor:
        """Compute a step, given as tensors in host memory. Fills the tokens' KV slots, and returns
        logits (R, V) on the device, in float32 or wider."""
        ...

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty KV cache. It is zeroed, because unused rows of a block must be finite."""
        ...


class TorchModel(ABC):
    """A decoder in torch: its weights on a device, and `compute`. The caller owns the KV cache."""

    min_blocks_saved = MIN_BLOCKS_SAVED
    overlaps = False

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device = CPU,
        operations: Operations = TORCH,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.operations = operations
        self.scale: float = config.head_size**-0.5

    @abstractmethod
    def compute(self, step: StepInput, attend: Attention, kv_L2KPSH: Tensor) -> Tensor:
        """`forward` of a step whose tensors are on the device. It does not wait for the device, and
        its control flow depends on no value there, so a CUDA graph can capture it.

        A layer stores all its keys and values before its attention, so a row may read the keys and
        values of another row of the same step.
        """

    def forward(self, step: StepInput, kv_L2KPSH: Tensor) -> Tensor:
        """`Model.forward` on the CPU."""
        return self.compute(step, TorchAttention(step.work, self.scale), kv_L2KPSH)

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty KV cache (L, 2, K, P, S, H)."""
        config = self.config
        shape = (config.layers, 2, config.kv_heads, blocks, block_size, config.head_size)
        if self.device.type == "cpu":
            return empty_cache(shape, self.dtype)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def widened(logits_RV: Tensor) -> Tensor:
    """The logits in float32 or wider, as sampling needs them."""
    return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))


_PIECE = 1 << 21  # bytes that a system with huge mappings gives out at once


def empty_cache(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory until they are written, because numpy maps them lazily.

    The system gives them out in pieces of 2 MB, because numpy asks for that, so the first written
    block of a head takes one. The zeros begin with a piece. Else the blocks of a head would begin
    in the middle of one, and take two.
    """
    count = math.prod(shape) * dtype.itemsize
    zeros = np.zeros(count + _PIECE, np.uint8)
    first = -zeros.ctypes.data % _PIECE
    return torch.from_numpy(zeros[first : first + count]).view(dtype).view(shape)
