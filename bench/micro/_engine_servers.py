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

from bench.harness.servers import family, free_port, last_words, session_cpu_seconds, stop
from bench.micro._engine_load import burst

START_S = 600.0  # vLLM compiles for 4 minutes on two slow cores


@dataclass(frozen=True, slots=True)
class System:
    """How to start a system on a port; `environment` is added to ours."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def weftline(
    model: Path, isa: str | None = None, home: Path | None = None, *, int8: bool = False
) -> System:
    """Our server with its defaults, or with the kernels of `isa`; `home` is where it keeps compiled
    kernels, if given. With `int8` it is a peer of the one with bfloat16 weights."""
    command = (sys.executable, "-m", "weftline_server", "serve", str(model), "--port", "{port}")
    name = "weftline"
    if int8:
        command, name = (*command, "--dtype", "int8"), "int8"
    environment = {} if home is None else {"WEFTLINE_HOME": str(home)}
    return System(name, command, environment | ({"WEFTLINE_ISA": isa} if isa else {}))


# Torch, its compiler, oneDNN and MKL obey these. vLLM's own kernels ask the CPU, through functions
# that the folder's sitecustomize replaces.
HELD_TO_AVX2: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "PYTHONPATH": str(Path(__file__).parent / "held_to_avx2"),
}


def obeys_avx2(python: Path) -> bool:
    """Whether the peer's torch, and what vLLM asks it, use no more than AVX2 when it is held."""
    ask = (
        "import torch; print(torch.backends.cpu.get_cpu_capability(), "
        "torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported())"
    )
    held = {**os.environ, **HELD_TO_AVX2}
    return subprocess.check_output([python, "-c", ask], env=held, text=True) == "AVX2 False False\n"


_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def vllm(
    python: Path,
    model: Path,
    cores: str,
    dtype: str,
    *,
    drafting: bool = False,
    isa: str | None = None,
    cache: Path | None = None,
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
        *(("--speculative-config", json.dumps(_NGRAM)) if drafting else ()),
    )
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    if cache is not None:
        environment |= {"VLLM_CACHE_ROOT": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "i")}
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
        self._began = time.perf_counter()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [word.replace("{port}", str(self.port)) for word in system.command],
                env={**os.environ, **system.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log

    def first_answer(self) -> float:
        """Seconds from the start of the process to the first token of its first answer."""
        while True:
            try:
                burst(self.port, ["Hello"], 1)
                return time.perf_counter() - self._began
            except (OSError, RuntimeError):
                if self._process.poll() is not None:
                    said = last_words(self._log)
                    raise RuntimeError(f"{self.system.name} did not start: {said}") from None
                if time.perf_counter() - self._began > START_S:
                    raise
                time.sleep(0.1)

    def resident_mb(self) -> float:
        """MiB of memory that all its processes hold; shared pages count once."""
        kilobytes = 0
        for pid in family(self._process.pid):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return kilobytes / 1024

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes until now."""
        return session_cpu_seconds(self._process.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
