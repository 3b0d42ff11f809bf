"""Chooses the device of a model, and how much of its memory the KV cache gets."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from weftline_engine.own.embedded import config
from weftline_engine.own.embedded.device import ComputeDevice
from weftline_engine.own.embedded.host_device import HOST
from weftline_engine.own.embedded.model.config import ModelError

# What a user installs for a GPU, and for models that the C kernels do not run.
INSTALL_TORCH = "pip install 'weftline[server,engine,gpu]'"
# 1.5 GB for SmolLM2 in bfloat16. The system gives a part of it memory only when it is first used.
MOST_TOKENS_ON_CPU = 65_536
# The share of free memory for the KV cache. The rest is for partial results of captured graphs, for
# logits, and for other processes. On a GPU the activations of the largest step are taken already.
_FRACTION = {"cpu": 1 / 3, "cuda": 0.85}
# What a machine with an NVIDIA driver has. Importing torch to ask takes 2 s.
_DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/dxg"))


def choose(wanted: str, dtype: str) -> ComputeDevice:
    """The device for a `config.Device`. Raises ModelError if this machine has none."""
    if wanted == config.Device.CPU:
        return HOST
    missing = _missing(wanted, dtype)
    if not missing:
        from weftline_engine.own.embedded.torch_device import current

        return current()
    if wanted == config.Device.CUDA:
        raise ModelError(f"the model cannot run on device cuda: {missing}")
    return HOST


def _missing(wanted: str, dtype: str) -> str:
    """Why no CUDA device can run a model of this type; empty if one can."""
    if not has_torch():
        return f"torch is not installed; {INSTALL_TORCH}, or give --device cpu"
    if wanted == config.Device.AUTO and not any(map(Path.exists, _DRIVERS)):
        return "there is no NVIDIA driver"
    from weftline_engine.own.embedded.torch_device import missing

    if said := missing():
        return said
    return "float64 runs on the CPU only" if dtype == "float64" else ""


def has_torch() -> bool:
    """Whether torch is installed, without its import."""
    return importlib.util.find_spec("torch") is not None


def kv_tokens(device: ComputeDevice, token_bytes: int, fraction: float | None) -> int:
    """How many tokens the KV cache can hold in the memory that is free now."""
    share = fraction or _FRACTION[device.kind]
    tokens = int(device.free_bytes() * share) // token_bytes
    return tokens if fraction or device.kind != "cpu" else min(MOST_TOKENS_ON_CPU, tokens)


def ahead_beside(device: ComputeDevice) -> bool:
    """Whether open prompts are computed ahead in steps in which other sequences decode.

    On a GPU they should be, because its arithmetic units are mostly idle in such steps. On a CPU
    each row takes 0.9 ms (and the weights 13 ms a step), which delays the call that the prompt
    waits for. There `bench chain_summary` took 1.7 % longer with early fills beside other
    sequences, and 1.1 % longer with early fills only in steps without them.
    """
    return device.kind == "cuda"


def cores() -> int:
    """The cores of this process, which may be fewer than the machine's."""
    return len(os.sched_getaffinity(0))
