"""Holds servers to AVX2 on a CPU with more, so that one machine shows what both kinds give.

With WEFTLINE_ISA=avx2, the variable that holds weftline's own kernels, `weftline bench` holds vLLM,
too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Torch, its compiler, oneDNN and MKL obey these. vLLM's own kernels ask the CPU, through functions
# that the folder's sitecustomize replaces.
HELD_TO_AVX2: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "PYTHONPATH": str(Path(__file__).parent / "held_to_avx2"),
}


def held(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for AVX2."""
    return environment.get("WEFTLINE_ISA") == "avx2"


def held_python(python: Path) -> Path:
    """A program beside the interpreter that runs it held to AVX2, whatever starts it.

    A weftline that starts vLLM gives that an environment without the paths of its own.
    """
    found = python.with_name(f"{python.name}-avx2")
    settings = {**HELD_TO_AVX2, "PYTHONPATH": HELD_TO_AVX2["PYTHONPATH"] + ":$PYTHONPATH"}
    exports = "".join(f'export {name}="{value}"\n' for name, value in settings.items())
    found.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(str(python))} "$@"\n')
    found.chmod(0o755)
    return found


def obeys_avx2(python: Path) -> bool:
    """Whether the peer's torch, and what vLLM asks it, use no more than AVX2 when it is held."""
    ask = (
        "import torch; print(torch.backends.cpu.get_cpu_capability(), "
        "torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported())"
    )
    environment = {**os.environ, **HELD_TO_AVX2}
    said = subprocess.check_output([python, "-c", ask], env=environment, text=True)
    return said == "AVX2 False False\n"
