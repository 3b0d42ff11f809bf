"""What vLLM is told about a machine without a GPU, where its own defaults do not fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_PRELOAD = "LD_PRELOAD"
_GIB = 1 << 30
_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
_CHOOSES = ("--kv-cache-memory", "--gpu-memory-utilization")
_EXECUTOR = "--distributed-executor-backend"
# Options with which vLLM has several workers, or whose value names another way to start them.
_PLACES_WORKERS = (
    _EXECUTOR,
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--nnodes",
)
# vLLM's own executor for one worker in the process that plans the steps. For CPUs vLLM replaces it
# where it is named "uni", because it sets OpenMP's variables for each process of a worker. Here
# they are set before vLLM starts.
_IN_THE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
# What vLLM gives its workers: threads sleep 5 ms after a product, and do not lower the clock.
_OPENMP = {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
_NUMBER = "OMP_NUM_THREADS"
_CORES = Path("/sys/devices/system/cpu")
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


def has_one_process(
    cores: int, workers: int, given: Collection[str], arguments: Sequence[str]
) -> bool:
    """Whether vLLM's worker computes in the process that plans the steps.

    By default that process spins while a worker of its own computes, and the worker has a thread on
    each of few cores. Record 59 has what was measured. What the environment `given` or `arguments`
    say about workers or threads stays.
    """
    named = any(one.split("=")[0] in _PLACES_WORKERS for one in arguments)
    is_bound = not {_THREADS, _NUMBER}.isdisjoint(given)
    return cores <= FEW_CORES and workers == 1 and not named and not is_bound


def executor() -> dict[str, str]:
    """The option by which the worker computes in the process that plans the steps."""
    return {_EXECUTOR: _IN_THE_CORE}


def threads(cores: Collection[int], given: Mapping[str, str]) -> dict[str, str]:
    """The variables of OpenMP for a worker on these cores. The kernel places its threads.

    As in vLLM, two hyperthreads of a core are one thread.
    """
    number = len({_siblings(core) for core in cores})
    return {_NUMBER: str(number), **{n: v for n, v in _OPENMP.items() if n not in given}}


def _siblings(core: int) -> str:
    """The hyperthreads beside a core, or the core itself where the system does not say."""
    path = _CORES / f"cpu{core}" / "topology" / "thread_siblings_list"
    return path.read_text().strip() if path.is_file() else str(core)
