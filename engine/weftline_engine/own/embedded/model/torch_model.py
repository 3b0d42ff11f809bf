"""The common base of the decoders in torch.

T = packed tokens, N = query heads, K = KV heads, H = head size, V = vocabulary, L = layers,
P = KV blocks, S = tokens a block, R = rows whose logits are wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.model.matrix import Matrix
from weftline_kernels.attention import Attention, TorchAttention
from weftline_kernels.cpu.blocks import WeightType
from weftline_kernels.operations import TORCH, Operations

CPU = torch.device("cpu")
_FLOATS = {
    WeightType.F32: torch.float32,
    WeightType.F16: torch.float16,
    WeightType.BF16: torch.bfloat16,
}


class TorchModel(ABC):
    """A decoder in torch: its weights on a device, and `compute`. The caller owns the KV cache."""

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

    def attend(self, step: StepInput, kv_L2KPSH: Tensor) -> Tensor:
        """Compute a step on the CPU, with attention in torch."""
        return self.compute(step, TorchAttention(step.work, self.scale), kv_L2KPSH)

    def cache_shape(self, blocks: int, block_size: int) -> tuple[int, ...]:
        """(L, 2, K, P, S, H)."""
        config = self.config
        return (config.cache_layers, 2, config.kv_heads, blocks, block_size, config.head_size)

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty KV cache on the device."""
        shape = self.cache_shape(blocks, block_size)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def matrix(self, found: Matrix) -> Tensor:
        """A matrix of a checkpoint on the device. Floats are copied from the mapped file."""
        if found.quantised:
            return self.vector(found.values())
        tensor = (
            torch.from_numpy(_writable(found.ordered()).reshape(-1))
            .view(_FLOATS[found.kind])
            .view(found.shape)
        )
        return tensor.to(self.device, self.dtype, copy=True)

    def vector(self, values: Values) -> Tensor:
        """Numbers of a checkpoint on the device."""
        return torch.from_numpy(_writable(values)).to(self.device, self.dtype)


def _writable(values: Values) -> Values:
    """The values, or a copy of those that are for reading alone: torch has no such tensors."""
    return values if values.flags.writeable else values.copy()


def widened(logits_RV: Tensor) -> Tensor:
    """The logits in float32 or wider, as sampling needs them."""
    return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
