"""Compiles the C decoder into a sealed library, and checks a seal before a library is loaded.

A sealed library ends with a mark, the key of what it was built from, and a checksum. The dynamic
linker ignores these bytes. A file that was cut short or changed is found before its code is mapped.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from weftline_kernels.cpu.variants import NATIVE, Cpu, Variant

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "decoder.c"

# FMA contraction makes the products fast. No -ffast-math, because NaN must be detected.
COMMON = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")

_MARK = b"weftline"
_KEY = 16
_COMPILE_S = 300.0  # a compiler takes 8 s; a hung one must not keep the engine from starting


class NoCompiler(Exception):
    """The decoder cannot be built here. The message gives the reason."""


class BadSeal(Exception):
    """The library is damaged, or it was built from something else. The message says which."""


def key_of(flags: tuple[str, ...], seen: tuple[str, ...] = ()) -> str:
    """A hash of the sources, the flags, and what else the result depends on."""
    parts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.[ch]"))]
    return hashlib.sha256("\0".join([*parts, *flags, *seen]).encode()).hexdigest()[:_KEY]


def flags_of(variant: Variant) -> tuple[str, ...]:
    """All flags of a variant."""
    return (*COMMON, *variant.flags)


def variant_key(variant: Variant, machine: Cpu) -> str:
    """The key of a variant. That of the native one depends on the features, too."""
    seen = tuple(sorted(machine.features)) if variant.name == NATIVE else ()
    return key_of(flags_of(variant), seen)


def find_compiler() -> str | None:
    """The path of gcc or cc, or None."""
    return shutil.which("gcc") or shutil.which("cc")


def library_for(variant: Variant, machine: Cpu) -> bytes:
    """The variant, compiled and sealed for the loader of `machine`. Raises NoCompiler."""
    return compile_library(flags_of(variant), variant_key(variant, machine))


def compile_library(flags: tuple[str, ...], key: str) -> bytes:
    """The decoder, compiled with these flags and sealed. Raises NoCompiler."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompiler("no gcc or cc in PATH")
    with tempfile.TemporaryDirectory(prefix="weftline-") as folder:
        built = Path(folder) / "decoder.o"
        linked = Path(folder) / "decoder.so"
        # The decoder must use the OpenMP library that torch has loaded: two thread pools would
        # compete for the cores. It is compiled with OpenMP, but linked without any library of it.
        for command in (
            [compiler, *flags, "-fopenmp", "-fPIC", "-c", str(SOURCE), "-o", str(built)],
            [compiler, "-shared", str(built), "-lm", "-o", str(linked)],
        ):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_COMPILE_S
                )
            except (OSError, subprocess.TimeoutExpired) as reason:
                raise NoCompiler(f"{compiler} failed: {reason}") from None
            if done.returncode:
                said = " ".join(done.stderr.strip()[-300:].split())
                raise NoCompiler(f"{compiler} failed: {said}")
        return seal(linked.read_bytes(), key)


def seal(library: bytes, key: str) -> bytes:
    """The library followed by its seal."""
    body = library + _MARK + key.encode()
    return body + hashlib.sha256(body).digest()


def check(path: Path, key: str) -> None:
    """Raise BadSeal unless the file is whole and was built from what `key` stands for."""
    try:
        data = path.read_bytes()
    except OSError as reason:
        raise BadSeal(f"{path} cannot be read: {reason.strerror}") from None
    body, checksum = data[:-32], data[-32:]
    if hashlib.sha256(body).digest() != checksum or body[-_KEY - len(_MARK) : -_KEY] != _MARK:
        raise BadSeal(f"{path} is damaged")
    if body[-_KEY:] != key.encode():
        raise BadSeal(f"{path} was built from other sources")
