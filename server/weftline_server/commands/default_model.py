"""What `weftline serve` says where no model is given: what it takes, and a better one for this
machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from weftline_engine.own.free_memory import available_bytes
from weftline_engine.own.models.short_names import ShortName, suggestion

_PATIENCE_S = 10.0  # for NVIDIA's tool, which waits for its driver
LLAMA_SERVER, OLLAMA = "llama-server", "ollama"
OLLAMA_URL, OF_OLLAMA = "http://127.0.0.1:11434", "qwen3:1.7b"
TAKEN = (
    "no MODEL is given, so this serves SmolLM2-135M-Instruct, which is small enough for every "
    "machine and shows what the server does, but answers poorly"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides which model a machine can serve. Without a GPU, `gpu_bytes` is 0. `programs` are
    the servers of models that are found on PATH.
    """

    cores: int
    free_bytes: int
    gpu_bytes: int = 0
    programs: tuple[str, ...] = ()


def this_machine() -> Machine:
    """The cores that this process may use, the memory that is free, and the largest GPU's."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    free = available_bytes() or page_bytes * os.sysconf("SC_AVPHYS_PAGES")
    programs = tuple(name for name in (LLAMA_SERVER, OLLAMA) if shutil.which(name))
    return Machine(len(os.sched_getaffinity(0)), free, _gpu_bytes(), programs)


def advice(machine: Machine) -> list[str]:
    gpu = f"a GPU of {machine.gpu_bytes / 1e9:.0f} GB" if machine.gpu_bytes else "no GPU"
    cores = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
    here = f"this machine has {cores}, {machine.free_bytes / 1e9:.1f} GB of free memory and {gpu}"
    better = suggestion(machine.cores, machine.free_bytes, machine.gpu_bytes)
    if better is None:
        return [TAKEN, f"{here}, too little for a larger model"]
    size = f"{better.gigabytes:.1f} GB to download"
    said = f"{here}. For real answers ({size}): weftline serve {better.name}"
    return [TAKEN, said, *_through(machine.programs, better)]


def _through(programs: Collection[str], model: ShortName) -> Iterator[str]:
    """How to serve through another server of models that is here. Ollama leaves out how a model is
    quantised, and has no SmolLM3.
    """
    if LLAMA_SERVER in programs and model.source.endswith(".gguf"):
        yield f"through llama-server: weftline serve {model.name} --engine llamacpp"
    if OLLAMA in programs:
        name = OF_OLLAMA if model.name.startswith("smollm3") else model.name.partition("-q")[0]
        served = f"weftline serve {name} --connect {OLLAMA_URL}"
        yield f"through Ollama, once its server runs: ollama pull {name} && {served}"


def _gpu_bytes() -> int:
    """The memory of the largest NVIDIA GPU. Asking torch would take two seconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    sizes = [int(line) for line in done.stdout.split() if line.isdigit()]
    return max(sizes, default=0) << 20
