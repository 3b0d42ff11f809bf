"""Compiles the C decoder with the machine's compiler, once per source and processor."""

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

# FMA contraction makes the products fast. No -ffast-math, because NaN must be detected.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


class NoCompiler(Exception):
    """The decoder cannot be built here. The message gives the reason."""


def library(folder: Path, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Return the decoder, built into `folder` unless it is there (3 s to build, 1 ms to load).

    Raises NoCompiler if there is no compiler, or it fails. The torch path needs none.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("no gcc or cc in PATH")
    path = folder / f"decoder-{_key(compiler, flags)}.so"
    if not path.exists():
        _build(compiler, path, flags)
    # The decoder must use the OpenMP library that torch has loaded: two thread pools would compete
    # for the cores. It is linked without any, so it uses the loaded one.
    ctypes.CDLL(_openmp(), mode=ctypes.RTLD_GLOBAL)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoCompiler(f"the built decoder does not load: {error}") from None


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Return a hash of the sources, the flags, the compiler and the processor's features."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    sources = "".join(path.read_text() for path in sorted(FOLDER.glob("*.[ch]")))
    seen = (sources, " ".join(flags), os.path.realpath(compiler), features)
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()[:16]


def _build(compiler: str, path: Path, flags: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / "decoder.o"
        linked = Path(folder) / "decoder.so"
        # Compile with OpenMP, but link without an OpenMP library.
        for command in (
            [compiler, *flags, "-fopenmp", "-fPIC", "-c", str(SOURCE), "-o", str(built)],
            [compiler, "-shared", str(built), "-lm", "-o", str(linked)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoCompiler(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        linked.replace(path)  # atomic, because two engines may start together


def _openmp() -> str:
    """Return the path of the OpenMP library that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libgomp" in line or "libiomp" in line or "libomp" in line:
            return line.split(maxsplit=5)[5]
    raise NoCompiler("torch has loaded no OpenMP library")
