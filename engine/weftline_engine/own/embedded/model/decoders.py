"""Chooses the decoder of a model: in C for up to 16 bits a weight on the CPU, else in torch."""

from __future__ import annotations

from pathlib import Path

from weftline_engine.own.embedded.devices import INSTALL_TORCH, cores, has_torch
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.model.checkpoint import Checkpoint, Heard, RandomWeights
from weftline_engine.own.embedded.model.config import LlamaConfig, ModelConfig, ModelError
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder, runs
from weftline_engine.own.embedded.model.weights import check_free, checkpoint
from weftline_engine.own.embedded.notices import say
from weftline_kernels.cpu.blocks import QUANTISED, WeightType
from weftline_kernels.cpu.compiler import variant_key
from weftline_kernels.cpu.loader import LibrarySearch, NoKernels, load
from weftline_kernels.cpu.variants import Cpu, emulates_bfloat16, this_machine

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
    check_free(weights, dtype if quantise is None else quantize)
    if dtype != "bfloat16":
        return _in_torch(config, weights, dtype, f"The C kernels do not compute in {dtype}.")
    search = LibrarySearch(builds, machine=machine or this_machine())
    if isinstance(config, LlamaConfig) and runs(config, block_size):
        try:
            library, choice = load(search)
        except NoKernels as reasons:
            why = str(reasons)
        else:
            say(" ".join([f"{choice}.", *choice.notes]))
            kernels = f"{choice.variant.name} {variant_key(choice.variant, choice.machine)}"
            decoder = NativeDecoder(
                config, weights, library, quantise=quantise, kernels=kernels, threads=cores()
            )
            if QUANTISED & decoder.weight_bytes.keys():
                say(_weights_of(decoder))
            return decoder
    else:
        why = "The C kernels do not run this model."
    if quantise is not None:
        raise ModelError(f"quantised weights need the C kernels: {why}")
    emulated = emulates_bfloat16(search.machine)
    model = _in_torch(config, weights, "float32" if emulated else "bfloat16", why)
    say(f"torch, {_IN_FLOAT32 if emulated else _IN_BFLOAT16}. {why}")
    return model


def _in_torch(config: ModelConfig, weights: Checkpoint, dtype: str, why: str) -> Model:
    """The decoder in torch, on the CPU. Raises ModelError where torch is not installed."""
    if not has_torch():
        raise ModelError(f"this model needs torch: {INSTALL_TORCH}. {why}")
    from weftline_engine.own.embedded.model.torch_decoders import on_host

    return on_host(config, weights, dtype, cores())


def _weights_of(decoder: NativeDecoder) -> str:
    """The weights in memory and their types."""
    sizes = decoder.weight_bytes
    each = ", ".join(f"{kind.name} {size / 1e6:,.0f} MB" for kind, size in sizes.items())
    return f"{sum(sizes.values()) / 1e6:,.0f} MB of weights in memory: {each}."
