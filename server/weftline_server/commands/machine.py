"""What `weftline doctor` finds on a machine: memory, disk, devices, torch, and vLLM."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from weftline_engine.own.free_memory import available_bytes
from weftline_engine.remote.vllm.versions import ASK, is_for_cpus

DRIVER = Path("/proc/driver/nvidia")  # there where NVIDIA's kernel module is loaded


def machine(home: Path) -> dict[str, Any]:
    """The machine as JSON data; `home` is the folder of the model cache, which may not exist."""
    there = next(path for path in (home, *home.absolute().parents) if path.exists())
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": page_bytes * os.sysconf("SC_PHYS_PAGES"),
        "available_bytes": available_bytes() or page_bytes * os.sysconf("SC_AVPHYS_PAGES"),
        "cache": str(home),
        "cache_free_bytes": shutil.disk_usage(there).free,
        "cache_writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        "nvidia_driver": DRIVER.exists(),
    }


def torch_here() -> dict[str, Any]:
    """Return torch's version, the CUDA version it was built for, its devices, or its error."""
    found: dict[str, Any] = {"version": None, "cuda": None, "devices": [], "error": None}
    if importlib.util.find_spec("torch") is None:
        return found
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        return found | {"error": " ".join(str(error).split())}
    devices = range(torch.cuda.device_count())
    return found | {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(device) for device in devices],
    }


def vllm_of(python: str | None) -> dict[str, Any]:
    """Return the name and version of vLLM in an interpreter (None: this one), or the error.

    `wants_cuda` is whether that build runs on CUDA devices only.
    """
    found: dict[str, Any] = {
        "python": python or sys.executable,
        "name": None,
        "version": None,
        "wants_cuda": False,
        "driver": DRIVER.exists(),
        "error": "no vLLM in this interpreter" if python is None else f"no vLLM in {python}",
    }
    command = [found["python"], "-c", ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return found | {"error": f"{found['python']} does not run: {error}"}
    name, _, version = done.stdout.strip().partition(" ")
    if not version:
        return found
    wants_cuda = not is_for_cpus(name, version)
    return found | {"name": name, "version": version, "wants_cuda": wants_cuda, "error": None}
