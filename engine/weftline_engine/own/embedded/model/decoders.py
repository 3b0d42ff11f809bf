"""Chooses the decoder of a model: in C for up to 16 bits a weight on the CPU, else in torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from weftline_engine.own.embedded.devices import check_memory, one_of_several
from weftline_engine.own.embedded.model.base import CPU, Model, TorchModel
from weftline_engine.own.embedded.model.blocks_file import BlocksFile, is_blocks
from weftline_engine.own.embedded.model.checkpoint import Checkpoint, Heard, RandomWeights
from weftline_engine.own.embedded.model.config import (
    LlamaConfig,
    ModelConfig,
    ModelError,
)
from weftline_engine.own.embedded.model.device_model import CudaGraphs, DeviceModel
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.llama import LlamaDecoder
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder, runs
from weftline_engine.own.free_memory import available_bytes
from weftline_kernels.cpu.blocks import QUANTISED, WeightType
from weftline_kernels.cpu.compiler import variant_key
from weftline_kernels.cpu.loader import LibrarySearch, NoKernels, load
from weftline_kernels.cpu.variants import Cpu, emulates_bfloat16, this_machine
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
    quantize: str = "none",
    heard: Heard | None = None,
    machine: Cpu | None = None,
) -> Model:
    """The model of a Hugging Face directory on the CPU. Compiled code is kept in `builds`.

    A `dummy` has random weights, and needs only config.json. `quantize` names the type to which the
    C kernels quantise matrices of 16 bits a weight and more. `heard` is called for each tensor that
    is read. `machine` describes the CPU, by default this one.

    Raises ModelError, also if there is too little memory, or if a quantised type is asked for and
    the C kernels do not run. A line on stderr says how the model is computed, and why
    faster ways do not work.
    """
    config = read_config(directory)
    weights = RandomWeights() if dummy else checkpoint(directory, heard)
    quantise = None if quantize == "none" else WeightType[quantize.upper()]
    if quantise is not None and dtype != "bfloat16":
        raise ModelError(f"weights are quantised in dtype bfloat16, not in {dtype}")
    _check_memory(weights, dtype if quantise is None else quantize)
    if dtype != "bfloat16":
        return torch_model(config, weights, getattr(torch, dtype))
    search = LibrarySearch(builds, machine=machine or this_machine())
    if isinstance(config, LlamaConfig) and runs(config, block_size):
        try:
            library, choice = load(search)
        except NoKernels as reasons:
            why = str(reasons)
        else:
            _say(" ".join([f"{choice}.", *choice.notes]))
            kernels = f"{choice.variant.name} {variant_key(choice.variant, choice.machine)}"
            decoder = NativeDecoder(config, weights, library, quantise=quantise, kernels=kernels)
            if QUANTISED & decoder.weight_bytes.keys():
                _say(_weights_of(decoder))
            return decoder
    else:
        why = "The C kernels do not run this model."
    if quantise is not None:
        raise ModelError(f"quantised weights need the C kernels: {why}")
    emulated = emulates_bfloat16(search.machine)
    _say(f"torch, {_IN_FLOAT32 if emulated else _IN_BFLOAT16}. {why}")
    return torch_model(config, weights, torch.float32 if emulated else torch.bfloat16)


def checkpoint(
    directory: Path, heard: Heard | None = None, device: torch.device = CPU
) -> Checkpoint:
    """The weights of a directory, which are read to `device`. Raises ModelError."""
    if is_blocks(directory):
        return BlocksFile(directory, heard)
    return Checkpoint(directory, heard, device)


# Bytes of a weight by its type in memory.
_WEIGHT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
}
# The bytes of quantised weights in panels, over those in the file: Q4_K has 148 bytes for 144.
_PACKED = 1.03


def _check_memory(weights: Checkpoint, kind: str) -> None:
    """Raise ModelError if the weights do not fit into the memory that is free."""
    free = available_bytes()
    quantised = isinstance(weights, BlocksFile) and kind == "bfloat16"
    needed = weights.nbytes * _PACKED if quantised else weights.count * _WEIGHT_BYTES[kind]
    if free is not None and needed > free:
        raise ModelError(
            f"the weights need {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; "
            "take a smaller model, one with fewer bits a weight, or --quantize q4_0"
        )


def _weights_of(decoder: NativeDecoder) -> str:
    """The weights in memory and their types."""
    sizes = decoder.weight_bytes
    each = ", ".join(f"{kind.name} {size / 1e6:,.0f} MB" for kind, size in sizes.items())
    return f"{sum(sizes.values()) / 1e6:,.0f} MB of weights in memory: {each}."


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
    config = for_device(read_config(directory))
    weights = RandomWeights(device) if dummy else checkpoint(directory, heard, device)
    check_memory(device, int(weights.count * _WEIGHT_BYTES[dtype]))
    if several := one_of_several():
        _say(several)
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
    return torch_model(read_config(directory), checkpoint(directory), dtype)


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
