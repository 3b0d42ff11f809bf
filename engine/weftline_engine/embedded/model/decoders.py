"""Chooses the decoder of a model: in C for bfloat16 and int8 on the CPU, else in torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from weftline_engine.embedded.model.base import CPU, Model, TorchModel
from weftline_engine.embedded.model.checkpoint import Checkpoint, Heard, RandomWeights
from weftline_engine.embedded.model.config import (
    LlamaConfig,
    ModelConfig,
    ModelError,
    OptConfig,
)
from weftline_engine.embedded.model.device_model import CudaGraphs, DeviceModel
from weftline_engine.embedded.model.families import read_config
from weftline_engine.embedded.model.llama import LlamaDecoder
from weftline_engine.embedded.model.native import NativeDecoder, runs
from weftline_engine.embedded.model.opt import OptDecoder
from weftline_kernels.cpu import (
    Machine,
    NoKernels,
    Search,
    emulates_bfloat16,
    load,
    this_machine,
)
from weftline_kernels.operations import TORCH, TRITON, Operations

# SmolLM2's prompts of 500 tokens took 3.3 and 4.0 times as long in torch as in the C decoder with
# AVX2, on 2 cores.
_IN_FLOAT32 = (
    "in float32 because this CPU has no bfloat16 products: twice the memory, and prompts take "
    "about 3 times as long as with the C kernels"
)
_IN_BFLOAT16 = "in bfloat16: slower than the C kernels"


def load_decoder(
    directory: Path,
    dtype: str,
    block_size: int,
    builds: Path,
    *,
    dummy: bool = False,
    heard: Heard | None = None,
    machine: Machine | None = None,
) -> Model:
    """The model of a Hugging Face directory on the CPU. Compiled code is kept in `builds`.

    A `dummy` has random weights, and needs only config.json. `heard` is called for each tensor that
    is read. `machine` describes the CPU, by default this one.

    Raises ModelError, also if int8 is asked for and the C kernels do not run. A line on stderr says
    how the model is computed, and why faster ways do not work.
    """
    config = read_config(directory)
    weights = RandomWeights() if dummy else Checkpoint(directory, heard)
    if dtype not in ("bfloat16", "int8"):
        return torch_model(config, weights, getattr(torch, dtype))
    search = Search(builds, machine=machine or this_machine())
    if isinstance(config, LlamaConfig) and runs(config, block_size):
        try:
            library, choice = load(search)
        except NoKernels as reasons:
            why = str(reasons)
        else:
            _say(" ".join([f"{choice}.", *choice.notes]))
            return NativeDecoder(config, weights, library, int8=dtype == "int8")
    else:
        why = "The C kernels do not run this model."
    if dtype == "int8":
        raise ModelError(f"int8 needs the C kernels: {why}")
    emulated = emulates_bfloat16(search.machine)
    _say(f"torch, {_IN_FLOAT32 if emulated else _IN_BFLOAT16}. {why}")
    return torch_model(config, weights, torch.float32 if emulated else torch.bfloat16)


def _say(words: str) -> None:
    print(f"engine: {words}", file=sys.stderr, flush=True)


def load_on_device(
    directory: Path,
    dtype: str,
    device: torch.device,
    *,
    max_running: int,
    dummy: bool = False,
    heard: Heard | None = None,
) -> DeviceModel:
    """The model of a Hugging Face directory, or a dummy, on a CUDA device. Raises ModelError."""
    weights = RandomWeights(device) if dummy else Checkpoint(directory, heard)
    config = for_device(read_config(directory))
    network = torch_model(config, weights, getattr(torch, dtype), device, TRITON)
    return DeviceModel(network, max_running=max_running, capture=CudaGraphs())


def for_device(config: ModelConfig) -> ModelConfig:
    """The model as the attention kernel of a device runs it, which has no windows and no cap of
    scores: contexts end where the first window would. Raises ModelError."""
    if not isinstance(config, LlamaConfig):
        return config
    if config.scales.score_cap is not None:
        raise ModelError("attn_logit_softcapping is not supported on a GPU; give --device cpu")
    if config.experts is not None:
        raise ModelError("num_experts is not supported on a GPU yet; give --device cpu")
    if config.window is None:
        return config
    _say(
        f"contexts of at most {config.window:,} tokens, because attention on a GPU has no "
        "sliding_window yet; --device cpu has it."
    )
    kinds = tuple(replace(kind, window=None) for kind in config.kinds)
    return replace(config, kinds=kinds, context_limit=min(config.context_limit, config.window))


def load_model(directory: Path, dtype: torch.dtype) -> TorchModel:
    """The model of a Hugging Face directory in torch, on the CPU. Raises ModelError."""
    return torch_model(read_config(directory), Checkpoint(directory), dtype)


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
        case OptConfig():
            return OptDecoder(config, weights, dtype, device, operations)
    raise ModelError(f"no decoder runs a {config.architecture}")
