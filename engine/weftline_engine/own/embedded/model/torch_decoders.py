"""Makes the decoders in torch, on a GPU or on the CPU.

Only this file and those that it imports need torch. They are imported when a model or a device asks
for it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from weftline_engine.own.embedded.model.checkpoint import Checkpoint, Heard, RandomWeights
from weftline_engine.own.embedded.model.config import (
    LlamaConfig,
    ModelConfig,
    ModelError,
)
from weftline_engine.own.embedded.model.device_model import CudaGraphs, DeviceModel
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.llama import LlamaDecoder
from weftline_engine.own.embedded.model.torch_model import CPU, TorchModel
from weftline_engine.own.embedded.model.weights import WEIGHT_BYTES, checkpoint
from weftline_engine.own.embedded.notices import say
from weftline_engine.own.embedded.torch_device import TorchDevice, check_memory, one_of_several
from weftline_kernels.operations import TORCH, TRITON, Operations


def load_on_device(
    directory: Path,
    dtype: str,
    device: TorchDevice,
    *,
    max_running: int,
    dummy: bool = False,
    heard: Heard | None = None,
) -> DeviceModel:
    """The model of a Hugging Face directory, or a dummy, on a CUDA device. Raises ModelError."""
    config = for_device(read_config(directory))
    weights = RandomWeights() if dummy else checkpoint(directory, heard)
    check_memory(device.device, int(weights.count * WEIGHT_BYTES[dtype]))
    if several := one_of_several():
        say(several)
    network = torch_model(config, weights, getattr(torch, dtype), device.device, TRITON)
    return DeviceModel(network, max_running=max_running, capture=CudaGraphs())


def for_device(config: ModelConfig) -> ModelConfig:
    """The model as the attention kernel of a device runs it, which has no windows and no cap of
    scores: contexts end where the first window would. Raises ModelError."""
    if not isinstance(config, LlamaConfig):
        return config
    if config.scales.score_cap is not None:
        raise ModelError("attn_logit_softcapping is not supported on a GPU; give --device cpu")
    if config.taps:
        raise ModelError("conv_L_cache is not supported on a GPU yet; give --device cpu")
    if config.experts is not None:
        raise ModelError("num_experts is not supported on a GPU yet; give --device cpu")
    if config.window is None:
        return config
    say(
        f"contexts of at most {config.window:,} tokens, because attention on a GPU has no "
        "sliding_window yet; --device cpu has it."
    )
    kinds = tuple(replace(kind, window=None) for kind in config.kinds)
    return replace(config, kinds=kinds, context_limit=min(config.context_limit, config.window))


def on_host(config: ModelConfig, weights: Checkpoint, dtype: str, threads: int) -> HostModel:
    """The model on the CPU, where torch computes on `threads` threads. Raises ModelError."""
    torch.set_num_threads(threads)
    return HostModel(torch_model(config, weights, getattr(torch, dtype)))


def torch_model(
    config: ModelConfig,
    weights: Checkpoint,
    dtype: torch.dtype,
    device: torch.device = CPU,
    operations: Operations = TORCH,
) -> TorchModel:
    """The decoder in torch for this configuration. Raises ModelError."""
    match config:
        case LlamaConfig():
            return LlamaDecoder(config, weights, dtype, device, operations)
    raise ModelError(f"no decoder runs a {config.architecture}")
