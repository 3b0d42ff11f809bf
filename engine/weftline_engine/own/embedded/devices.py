"""Chooses the device of a model, and how much of its memory the KV cache gets."""

from __future__ import annotations

import os

import torch

from weftline_engine.own.embedded.config import Device
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.free_memory import available_bytes
from weftline_kernels.jit import HAS_TRITON

# 1.5 GB for SmolLM2 in bfloat16. The system gives a part of it memory only when it is first used.
MOST_TOKENS_ON_CPU = 65_536
# The share of free memory for the KV cache. The rest is for partial results of captured graphs, for
# logits, and for other processes. On a GPU the activations of the largest step are taken already.
_FRACTION = {"cpu": 1 / 3, "cuda": 0.85}


def choose(wanted: str, dtype: str) -> torch.device:
    """The torch device for a `config.Device`. Raises ModelError if this machine has none."""
    if wanted == Device.CPU:
        return torch.device("cpu")
    missing = _missing(dtype)
    if not missing:
        return torch.device("cuda", torch.cuda.current_device())
    if wanted == Device.CUDA:
        raise ModelError(f"the model cannot run on device cuda: {missing}")
    return torch.device("cpu")


def _missing(dtype: str) -> str:
    """Why no CUDA device can run a model of this type; empty if one can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; give --device cpu, or a torch built for CUDA"
    if not HAS_TRITON:
        return "Triton is not installed; install weftline[gpu], or give --device cpu"
    if dtype == "float64":
        return "float64 runs on the CPU only"
    return ""


def kv_tokens(device: torch.device, token_bytes: int, fraction: float | None) -> int:
    """How many tokens the KV cache can hold in the memory that is free now."""
    share = fraction or _FRACTION[device.type]
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * share) // token_bytes
    tokens = int(_free_memory() * share) // token_bytes
    return tokens if fraction else min(MOST_TOKENS_ON_CPU, tokens)


def ahead_beside(device: torch.device) -> bool:
    """Whether open prompts are computed ahead in steps in which other sequences decode.

    On a GPU they should be, because its arithmetic units are mostly idle in such steps. On a CPU
    each row takes 0.9 ms (and the weights 13 ms a step), which delays the call that the prompt
    waits for. There `bench chain_summary` took 1.7 % longer with early fills beside other
    sequences, and 1.1 % longer with early fills only in steps without them.
    """
    return device.type == "cuda"


def check_memory(device: torch.device, needed: int) -> None:
    """Raise ModelError unless weights of so many bytes fit into what is free on the device."""
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise ModelError(
            f"the weights need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory "
            f"are free; take a smaller model, or {_on_several(max(2, torch.cuda.device_count()))}"
        )


def one_of_several() -> str:
    """What a user with several GPUs should know; empty on other machines."""
    count = torch.cuda.device_count()
    if count < 2:
        return ""
    return (
        f"one of {count} GPUs computes: start a replica on each, with CUDA_VISIBLE_DEVICES, or "
        f"{_on_several(count)}."
    )


def _on_several(count: int) -> str:
    return (
        f"spread it over {count} GPUs by vLLM: weftline serve MODEL --engine vllm --engine-python "
        f"PYTHON --tensor-parallel {count}"
    )


def name(device: torch.device) -> str:
    """The device's name, as the engine announces it."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return "cpu"


def use_cores() -> None:
    """Let torch use as many threads as this process has cores, which may be fewer than the
    machine's."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def _free_memory() -> int:
    """Bytes that can be allocated without swapping."""
    if (found := available_bytes()) is None:
        raise ModelError("this system does not say how much memory is free; give --kv-tokens")
    return found
