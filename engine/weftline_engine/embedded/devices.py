"""Which device a model runs on, and how much of its memory the KV cache gets."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from weftline_engine.embedded.config import Device
from weftline_engine.embedded.model.config import ModelError
from weftline_kernels.jit import HAS_TRITON

# 1.5 GB for SmolLM2 in bfloat16, of which only what is used is ever touched.
MOST_TOKENS_ON_CPU = 65_536
# The rest is for a step's activations, the captured graphs' partial results, and other processes.
_FRACTION = {"cpu": 1 / 3, "cuda": 0.85}
# A prompt's chunk: long enough to keep the processor's matrix units busy, short enough that those
# who decode beside it do not wait.
_STEP_TOKENS = {"cpu": 512, "cuda": 2048}


def choose(wanted: str, dtype: str) -> torch.device:
    """The device of `config.Device`. Raises ModelError for one that is not here."""
    if wanted == Device.CPU:
        return torch.device("cpu")
    missing = _missing(dtype)
    if not missing:
        return torch.device("cuda", torch.cuda.current_device())
    if wanted == Device.CUDA:
        raise ModelError(f"the model cannot run on device cuda: {missing}")
    return torch.device("cpu")


def _missing(dtype: str) -> str:
    """Why no CUDA device can run a model of this type; empty where one can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; give --device cpu, or a torch built for CUDA"
    if not HAS_TRITON:
        return "Triton is not installed; install weftline[gpu], or give --device cpu"
    if dtype == "float64":
        return "float64 runs on the CPU only"
    return ""


def kv_tokens(device: torch.device, token_bytes: int, fraction: float | None) -> int:
    """Tokens for which the KV cache has room, in the memory that is free now."""
    share = fraction or _FRACTION[device.type]
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * share) // token_bytes
    tokens = int(_free_memory() * share) // token_bytes
    return tokens if fraction else min(MOST_TOKENS_ON_CPU, tokens)


def step_tokens(device: torch.device, wanted: int | None) -> int:
    """Tokens of a step, where the user leaves it to us."""
    return wanted or _STEP_TOKENS[device.type]


def beside_tokens(device: torch.device, step: int) -> int:
    """Tokens of prompts behind another application's decode.

    On two cores a step of 96 rows takes 93 ms, one of 512 takes 452: a row costs 9 % more in the
    small one (4 % with 128, 16 % with 64), and who decodes gets five tokens for one. Ten chains of
    eight calls end 17 % earlier in the mean (7 % with 128), the last one 5 % later; simulated chats
    beside map-reduce 47 % earlier. Not measured on a GPU.
    """
    return min(step, 96) if device.type == "cpu" else step


def ahead_beside(device: torch.device) -> bool:
    """Whether prompts are best computed ahead beside what decodes.

    A GPU's arithmetic idles there. On a CPU each row of a step takes its time (0.9 ms beside 13 for
    the weights), which the call that the prompt waits for loses: computing ahead cost `bench
    chain_summary` 1.7 % beside others, and 1.1 % since it is done only where there are none.
    """
    return device.type == "cuda"


def name(device: torch.device) -> str:
    """What the engine announces."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return "cpu"


def use_cores() -> None:
    """Run torch on the cores that are ours: a container or taskset may leave us fewer than the
    machine has."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def _free_memory() -> int:
    """Bytes that may be taken without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ModelError("this system does not say how much memory is free; give --kv-tokens")
