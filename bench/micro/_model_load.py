"""How long a server takes until it answers from a GGUF file of a shape, and its engine's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness.metrics import spread
from bench.micro._engine_servers import Server, System
from tests.random_gguf import write_gguf
from weftline_engine.own.embedded.model.config import LlamaConfig

# A small KV cache, so that what the engine holds besides is known.
FEW_TOKENS = 2048
# What the engine's process holds before it reads anything of a model.
_INTERPRETER = (
    "import weftline_engine.own.loading, weftline_engine.own.constraints.grammars; "
    "print(open('/proc/self/status').read())"
)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One start: seconds from the command to the first answer, CPU seconds of all processes, and
    the most MB that the engine's process has held until then."""

    seconds: float
    cpu_s: float
    peak_mb: float


def load_once(model: Path, home: Path, few: bool) -> ModelLoad:
    """Start a server, wait for its first answer, and stop it. `few` asks for FEW_TOKENS."""
    command = [sys.executable, "-m", "weftline_server", "serve", str(model), "--port", "{port}"]
    command += ["--kv-tokens", str(FEW_TOKENS)] if few else []
    system = System("weftline", tuple(command), {"WEFTLINE_HOME": str(home)})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with Server(system, Path(folder) / "log") as server:
            server.wait()
            return ModelLoad(
                time.perf_counter() - began, server.cpu_seconds(), server.peak_mb() * 1.048576
            )


def interpreter_mb() -> float:
    """The MB that Python holds with all that the engine imports."""
    asked = [sys.executable, "-c", _INTERPRETER]
    said = subprocess.check_output(asked, env=os.environ, text=True)
    [line] = [line for line in said.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024 / 1e6


def loads(folder: Path, name: str, config: LlamaConfig, kind: str, repeat: int) -> dict[str, Any]:
    """A first start, and `repeat` warm ones. The share of the file is that of what the engine holds
    beyond the interpreter and the KV cache, at most."""
    model = folder / f"{name}-{config.layers}-{kind}-words.gguf"
    if not model.is_file():
        new = write_gguf(model.with_suffix(".new"), config, kind, words=True)
        new.replace(model)
    with tempfile.TemporaryDirectory(dir=folder) as home:
        first = load_once(model, Path(home), few=False)
        warm = [load_once(model, Path(home), few=False) for _ in range(repeat)]
        small = load_once(model, Path(home), few=True)
    file_mb = model.stat().st_size / 1e6
    cache_mb = FEW_TOKENS * config.layers * 2 * config.kv_heads * config.head_size * 2 / 1e6
    base_mb = interpreter_mb()
    return {
        "file_mb": round(file_mb),
        "first": asdict(first),
        "seconds": spread([one.seconds for one in warm]).to_json(),
        "cpu_s": spread([one.cpu_s for one in warm]).to_json(),
        "peak_mb": round(max(one.peak_mb for one in warm)),
        "peak_mb_with_few_tokens": round(small.peak_mb),
        "kv_mb_of_few_tokens": round(cache_mb),
        "interpreter_mb": round(base_mb),
        "of_file": round((small.peak_mb - base_mb - cache_mb) / file_mb, 2),
    }
