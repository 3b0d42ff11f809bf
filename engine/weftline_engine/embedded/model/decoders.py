"""Chooses the decoder of a model: in C for bfloat16 on the CPU, in torch for all others."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from weftline_engine.embedded.model.base import CPU, Model, TorchModel
from weftline_engine.embedded.model.checkpoint import Checkpoint, RandomWeights
from weftline_engine.embedded.model.config import (
    LlamaConfig,
    ModelConfig,
    ModelError,
    OptConfig,
    read_config,
)
from weftline_engine.embedded.model.device_model import CudaGraphs, DeviceModel
from weftline_engine.embedded.model.llama import LlamaDecoder
from weftline_engine.embedded.model.native import NativeDecoder, runs
from weftline_engine.embedded.model.opt import OptDecoder
from weftline_kernels.cpu import NoCompiler, library
from weftline_kernels.operations import TORCH, TRITON, Operations


def load_decoder(
    directory: Path, dtype: str, page_size: int, builds: Path, *, dummy: bool = False
) -> Model:
    """The model of a Hugging Face directory on the CPU. Compiled code is kept in `builds`.
    A `dummy` has random weights, and needs only config.json.

    Raises ModelError. Without a compiler bfloat16 runs in torch, and a line on stderr says so.
    """
    config = read_config(directory)
    weights = RandomWeights() if dummy else Checkpoint(directory)
    if dtype == "bfloat16" and isinstance(config, LlamaConfig) and runs(config, page_size):
        try:
            return NativeDecoder(config, weights, _current(builds))
        except NoCompiler as reason:
            print(f"engine: slower, for the C decoder is missing: {reason}", file=sys.stderr)
    return torch_model(config, weights, getattr(torch, dtype))


def load_on_device(
    directory: Path, dtype: str, device: torch.device, *, max_running: int, dummy: bool = False
) -> DeviceModel:
    """The model of a Hugging Face directory, or a dummy, on a CUDA device. Raises ModelError."""
    weights = RandomWeights(device) if dummy else Checkpoint(directory)
    network = torch_model(read_config(directory), weights, getattr(torch, dtype), device, TRITON)
    return DeviceModel(network, max_running=max_running, capture=CudaGraphs())


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


def _current(builds: Path) -> ctypes.CDLL:
    """The compiled C decoder. A new build removes the older ones, because every change of a source,
    a flag or a compiler leaves one more. Running engines keep their open file."""
    before = set(builds.glob("decoder-*.so"))
    found = library(builds)
    if set(builds.glob("decoder-*.so")) - before:
        for path in before:
            path.unlink(missing_ok=True)
    return found
