"""Builds the C decoder with the machine's compiler, once for each source and processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "decoder.c"

# Contraction to FMA is what makes the products fast; NaN must still be seen, so no -ffast-math.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


class NoCompiler(Exception):
    """The decoder cannot be built here; the message says why."""


def library(folder: Path, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The built decoder, from `folder` where an earlier start left it (3 s to build, 1 ms to load).

    Raises NoCompiler where there is no gcc or it fails; the torch path does without.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("no gcc or cc in PATH")
    path = folder / f"decoder-{_key(compiler, flags)}.so"
    if not path.exists():
        _build(compiler, path, flags)
    # torch's OpenMP must serve our parallel regions too: two pools would fight for the cores. The
    # library is linked with none, and takes the one that is loaded.
    ctypes.CDLL(_openmp(), mode=ctypes.RTLD_GLOBAL)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoCompiler(f"the built decoder does not load: {error}") from None


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Changes with the source, the flags, the compiler and the processor's abilities."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    abilities = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    sources = "".join(path.read_text() for path in sorted(FOLDER.glob("*.[ch]")))
    seen = (sources, " ".join(flags), os.path.realpath(compiler), abilities)
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()[:16]


def _build(compiler: str, path: Path, flags: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / "decoder.o"
        linked = Path(folder) / "decoder.so"
        # Compiled with OpenMP, but linked without naming a library of it.
        for command in (
            [compiler, *flags, "-fopenmp", "-fPIC", "-c", str(SOURCE), "-o", str(built)],
            [compiler, "-shared", str(built), "-lm", "-o", str(linked)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoCompiler(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        linked.replace(path)  # at once, for two engines may start together


def _openmp() -> str:
    """The OpenMP library that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libgomp" in line or "libiomp" in line or "libomp" in line:
            return line.split(maxsplit=5)[5]
    raise NoCompiler("torch has loaded no OpenMP library")
