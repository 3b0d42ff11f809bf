"""The engine of `weftline serve MODEL` where none is named: vLLM on a machine with a GPU and vLLM,
and our own elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weftline_engine.own.models.short_names import short_names
from weftline_server.commands import machine
from weftline_server.commands.engine_spec import ENGINE_TAKERS

_PROGRAM = "vllm"
_MOST_LINE = 4096  # bytes of a script's first line


@dataclass(frozen=True, slots=True)
class FoundVLLM:
    """A vLLM for GPUs: its interpreter and its version."""

    python: str
    version: str

    @property
    def said(self) -> str:
        return (
            f"vLLM {self.version} in {self.python} serves the model on this machine's GPU, with "
            "weftline's scheduler where it knows that version; --engine torch takes weftline's own "
            "engine"
        )


def on_vllm(settings: Mapping[str, Any], found: FoundVLLM) -> dict[str, Any]:
    return {**settings, "engine": "vllm", "engine_python": found.python}


def may_be_vllm(settings: Mapping[str, Any]) -> bool:
    """Whether the engine was left open, and vLLM reads the model and takes the other settings.

    vLLM reads directories and models of the hub.
    """
    model = settings.get("model")
    if model is None or settings.keys() & {"engine", "engine_python"}:
        return False
    if not all("vllm" in ENGINE_TAKERS[name] for name in settings):
        return False
    is_gguf = model.endswith(".gguf") or model.startswith("pypi:")
    return not is_gguf and all(one.name != model.lower() for one in short_names())


def vllm_on_gpu() -> FoundVLLM | None:
    """The vLLM for GPUs of this interpreter, or of the `vllm` on PATH. None without one, and
    without a GPU."""
    if not machine.DRIVER.exists():
        return None
    for python in dict.fromkeys(filter(None, (sys.executable, _interpreter()))):
        seen = machine.vllm_of(python)
        if seen["wants_cuda"]:
            return FoundVLLM(python, seen["version"])
    return None


def _interpreter() -> str | None:
    """The interpreter of the program `vllm`, which is a script that names it."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return None
    with Path(program).open("rb") as file:
        first = file.readline(_MOST_LINE).decode(errors="replace").strip()
    return first.removeprefix("#!").strip() if first.startswith("#!/") else None
