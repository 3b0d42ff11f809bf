"""Starts and stops the servers of the engine comparison, and measures their memory and CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.harness.instructions import HELD_TO_AVX2
from bench.harness.servers import family, last_words, launched, session_cpu_seconds, stop
from bench.micro._engine_load import burst
from tests.ports import free_port

START_S = 600.0  # vLLM compiles for 4 minutes on two slow cores


@dataclass(frozen=True, slots=True)
class System:
    """How to start a system on a port; `environment` is added to ours."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def weftline(model: Path, isa: str | None = None, *, random: bool = False) -> System:
    """Our server with its defaults, or with the kernels of `isa`. With `random` weights it drafts
    nothing, because such answers repeat themselves."""
    command = (sys.executable, "-m", "weftline_server", "serve", str(model), "--port", "{port}")
    if random:
        command = (*command, "--load-format", "dummy", "--without", "drafting")
    return System("weftline", command, {"WEFTLINE_ISA": isa} if isa else {})


_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def vllm(
    python: Path,
    model: Path,
    cores: str,
    dtype: str,
    *,
    drafting: bool = False,
    isa: str | None = None,
    random: bool = False,
) -> System:
    """vLLM with 2 GiB of KV cache, its threads bound to the list `cores`, or to its `auto` choice.

    By default it would keep one of two cores for its HTTP server. With `drafting` it proposes
    n-grams of the prompt.
    """
    command = (
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--port",
        "{port}",
        "--model",
        str(model),
        "--served-model-name",
        "default",
        "--dtype",
        dtype,
        "--max-model-len",
        "4096",
        *(("--load-format", "dummy") if random else ()),
        *(("--speculative-config", json.dumps(_NGRAM)) if drafting else ()),
    )
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    if isa == "avx2":
        environment |= HELD_TO_AVX2
    return System("vllm-ngram" if drafting else "vllm", command, environment)


def _converted(folder: Path, model: Path, outtype: str) -> Path:
    """The weights as a GGUF, which is made when it is first needed."""
    weights = folder / f"{model.name}-{outtype}.gguf"
    if not weights.is_file():
        convert = folder / "source" / "convert_hf_to_gguf.py"
        asked = (sys.executable, convert, model, "--outtype", outtype, "--outfile", weights)
        subprocess.run(
            list(map(str, asked)), env={**os.environ, "PYTHONPATH": str(folder / "lib")}, check=True
        )
    return weights


def llama(folder: Path, model: Path, outtype: str, threads: int) -> System:
    """llama.cpp's server on weights in f16 or q8_0, with 64 slots and one KV cache for all.

    `folder` is where `make install-llama` built it; the converted weights are kept there.
    """
    arguments = {
        "--model": _converted(folder, model, outtype),
        "--alias": "default",
        "--port": "{port}",
        "--threads": threads,
        "--parallel": 64,
        "--ctx-size": 40_960,  # 16 requests on a prefix of 2,000 each hold all of it
    }
    words = (str(word) for pair in arguments.items() for word in pair)
    server = str(folder / "llama-server")
    return System(f"llama-{outtype.partition('_')[0]}", (server, "--kv-unified", *words), {})


class Server:
    """A running system in a session of its own; its output goes to `log`."""

    def __init__(self, system: System, log: Path) -> None:
        self.system = system
        self.port = free_port()
        words = [word.replace("{port}", str(self.port)) for word in system.command]
        self._process = launched(words, {**os.environ, **system.environment}, log)
        self._log = log

    def wait(self) -> None:
        """Wait for its first answer."""
        began = time.perf_counter()
        while True:
            try:
                burst(self.port, ["Hello"], 1)
                return
            except (OSError, RuntimeError):
                if self._process.poll() is not None:
                    said = last_words(self._log)
                    raise RuntimeError(f"{self.system.name} did not start: {said}") from None
                if time.perf_counter() - began > START_S:
                    raise
                time.sleep(0.1)

    def resident_mb(self) -> float:
        """MiB of memory that all its processes hold; shared pages count once."""
        kilobytes = 0
        for pid in family(self._process.pid):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return kilobytes / 1024

    def peak_mb(self) -> float:
        """The most MiB that the largest of its processes has held: the engine's."""
        peaks = []
        for pid in family(self._process.pid):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")]
        return max(peaks)

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes until now."""
        return session_cpu_seconds(self._process.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
