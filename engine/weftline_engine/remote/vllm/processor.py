"""What vLLM is told about a machine without a GPU, where its own defaults do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_PRELOAD = "LD_PRELOAD"
_GIB = 1 << 30
_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
_CHOOSES = ("--kv-cache-memory", "--gpu-memory-utilization")
SHARE = 4  # of the available memory, a quarter is the KV cache
FEW_CORES = 4


def settings(
    cores: int, available: int | None, given: Mapping[str, str], arguments: tuple[str, ...]
) -> dict[str, str]:
    """The variables to add to the environment `given` of a vLLM that runs on the CPU.

    By default vLLM 0.32 takes 92 % of the machine's memory for its KV cache, and does not start if
    other processes use too much. It also leaves one core unused, which is half of two cores.
    """
    found = {}
    is_chosen = any(one.startswith(_CHOOSES) for one in arguments)
    if available is not None and _SPACE not in given and not is_chosen:
        found[_SPACE] = str(max(1, available // SHARE // _GIB))
    if cores <= FEW_CORES and not {_RESERVED, _THREADS} & given.keys():
        found[_RESERVED] = "0"
    return found


def openmp(python: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variable that loads the OpenMP library of vLLM's package, as its documentation advises.

    Without it torch uses the system's library, whose threads start more slowly. A value in `given`
    stays as it is.
    """
    found = Path(python).parents[1] / "lib" / "libiomp5.so"
    return {_PRELOAD: str(found)} if _PRELOAD not in given and found.exists() else {}
