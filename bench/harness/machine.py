"""The machine, the versions and the commit of a measurement."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.harness.instructions import held
from bench.harness.servers import VLLM_PYTHON
from bench.harness.texts import ROOT

SOURCES = (
    "client",
    "server",
    "engine",
    "kernels",
    "integrations",
    "bench/harness",
    "bench/workloads",
)
PACKAGES = ("langchain-core", "langchain-openai", "langgraph", "llama-index-core", "torch")


def describe(cores: Sequence[int] = (), client_cores: Sequence[int] = ()) -> dict[str, Any]:
    """The facts that a reader needs to judge a number.

    `cores` are those of the servers, `client_cores` those of the client and of the proxies that
    delay it; by default all that this process may use.
    """
    own = sorted(os.sched_getaffinity(0))
    cores, client_cores = cores or own, client_cores or own
    return {
        "cpu": cpu_name(),
        "gpus": gpus(),
        "cores": len({*cores, *client_cores}),
        "server_cores": list(cores),
        "client_cores": list(client_cores),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "held_to_avx2": held(os.environ),
        "bf16_instructions": not held(os.environ) and bool({"avx512_bf16", "amx_bf16"} & _flags()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))}
        | {"vllm": _vllm_version()},
        "commit": _git("rev-parse", "--short", "HEAD"),
        "source": _source(),
        "changed_since_commit": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
        ),
    }


def _source() -> str:
    """A hash of the measured and the measuring code, which docs and results do not change."""
    text = _git("ls-tree", "-r", "HEAD", "--", *SOURCES) + _git("diff", "HEAD", "--", *SOURCES)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cpu_name() -> str:
    """The processor's name, as the kernel reports it."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs, by the driver's own program."""
    try:
        words = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return said.stdout.split("\n")[:-1]


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    _, user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split(None, 8)
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def slug(cores: int) -> str:
    """The machine's part of the name of a results folder."""
    name = re.sub(r"\(r\)|\(tm\)|processor|cpu|@.*", " ", cpu_name().lower())
    avx2 = "avx2" if held(os.environ) else ""
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {cores} cores {avx2}").strip("-")


def _flags() -> set[str]:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    return set(found.group(1).split()) if found else set()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _vllm_version() -> str | None:
    found = list(VLLM_PYTHON.parents[1].glob("lib/python3*/site-packages/vllm*.dist-info"))
    return found[0].name.removesuffix(".dist-info").partition("-")[2] if found else None


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip()
