"""A decoder in torch on the CPU, as a `Model`: for types and families that the C kernels lack."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weftline_engine.own.embedded.host_device import HOST, Values
from weftline_engine.own.embedded.model.base import StepInput, empty_cache
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_kernels.work_list import MIN_BLOCKS_SAVED

# numpy's types of a cache. It has no bfloat16.
_TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.int16}


class HostModel:
    """A `Model` whose arrays are numpy's. torch computes on the same memory."""

    device = HOST
    min_blocks_saved = MIN_BLOCKS_SAVED
    overlaps = False

    def __init__(self, network: TorchModel) -> None:
        self.network = network
        self.config: ModelConfig = network.config
        self.precision = str(network.dtype).removeprefix("torch.")

    def new_cache(self, blocks: int, block_size: int) -> Values:
        """An empty KV cache (L, 2, K, P, S, H)."""
        shape = self.network.cache_shape(blocks, block_size)
        return empty_cache(shape, np.dtype(_TYPES[self.network.dtype]))

    def warm(self, cache: Values) -> None:
        """There is nothing to prepare."""

    @torch.inference_mode()
    def forward(self, step: StepInput, cache: Values) -> Values:
        parts = (step.tokens_T, step.positions_T, step.slots_T, step.rows_R)
        tokens_T, positions_T, slots_T, rows_R = map(torch.from_numpy, parts)
        inside = StepInput(tokens_T, positions_T, slots_T, rows_R, step.work)
        cached: Tensor = torch.from_numpy(cache).view(self.network.dtype)
        logits = self.network.attend(inside, cached)
        found: Values = logits.numpy()
        return found
