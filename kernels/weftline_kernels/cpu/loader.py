"""Finds the C decoder for this machine: built with the wheel, compiled before, or compiled now.

Each step that fails leaves one sentence, and the next one is tried: the prebuilt library, the one
in the cache, the compiler, then the same for the next best variant. No instruction of a variant is
executed before the CPU's features are known to suffice.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from weftline_kernels.cpu.compiler import (
    COMMON,
    FOLDER,
    BadSeal,
    NoCompiler,
    check,
    compile_library,
    find_compiler,
    key_of,
    library_for,
    variant_key,
)
from weftline_kernels.cpu.variants import Cpu, Variant, cost, no_variant, order, this_machine

FLAGS = (*COMMON, "-march=native")
OPENMP = "libgomp.so.1"


class LibraryOrigin(StrEnum):
    """Where a library comes from."""

    PREBUILT = "prebuilt"
    CACHED = "compiled before"
    COMPILED = "compiled now"


class NoKernels(Exception):
    """No variant can be had. The message gives every reason, a sentence each."""


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """What to look for, and where: `cache` holds what was compiled here, `prebuilt` the wheel's.

    `wanted` is a variant's name, "native" or "" (the best one); WEFTLINE_ISA gives it.
    """

    cache: Path
    prebuilt: Path = FOLDER / "lib"
    wanted: str = field(default_factory=lambda: os.environ.get("WEFTLINE_ISA", ""))
    machine: Cpu = field(default_factory=this_machine)


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """A variant, where it comes from, and a sentence for each better way that failed."""

    variant: Variant
    origin: LibraryOrigin
    machine: Cpu
    notes: tuple[str, ...]

    @property
    def cost(self) -> str:
        """What it costs, against the best variant of the machine."""
        return cost(self.variant, self.machine)

    def __str__(self) -> str:
        """The path in use and what it costs."""
        return f"{self.variant.name} kernels, {self.origin}: {self.cost}"


def expect(search: LibrarySearch) -> VariantChoice:
    """What `load` would find, without loading or compiling it. Raises NoKernels."""
    variants, complaints = order(search.wanted, search.machine)
    notes = list(complaints)
    for variant in variants:
        for origin, _ in _libraries(variant, search, notes):
            return VariantChoice(variant, origin, search.machine, tuple(notes))
        if find_compiler() is not None:
            return VariantChoice(variant, LibraryOrigin.COMPILED, search.machine, tuple(notes))
    raise NoKernels(_reasons(notes, bool(variants), search.machine, "No gcc or cc in PATH."))


def load(search: LibrarySearch) -> tuple[ctypes.CDLL, VariantChoice]:
    """The best decoder that can be had (1 ms; 8 s if it has to be compiled). Raises NoKernels."""
    variants, complaints = order(search.wanted, search.machine)
    notes = list(complaints)
    if variants:
        _share_openmp()
    for variant in variants:
        for origin, path in _libraries(variant, search, notes):
            try:
                found = _open(path)
            except OSError as reason:
                notes.append(f"{path} does not load: {reason}.")
                continue
            return found, VariantChoice(variant, origin, search.machine, tuple(notes))
        try:
            found = _compiled(variant, search, notes)
        except NoCompiler as reason:
            notes.append(f"{variant.name} was not compiled: {reason}.")
            continue
        return found, VariantChoice(variant, LibraryOrigin.COMPILED, search.machine, tuple(notes))
    raise NoKernels(_reasons(notes, bool(variants), search.machine))


def library(cache: Path, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The decoder compiled with exactly these flags, or found in `cache`. Raises NoCompiler."""
    _share_openmp()
    key = key_of(flags, tuple(sorted(this_machine().features)))
    path = cache / f"decoder-flags-{key}.so"
    if not path.exists():
        _keep(compile_library(flags, key), path)
    return _open(path)


def _libraries(
    variant: Variant, search: LibrarySearch, notes: list[str]
) -> Iterator[tuple[LibraryOrigin, Path]]:
    """The whole libraries of a variant; `notes` gets a sentence on each of the others."""
    key = variant_key(variant, search.machine)
    for origin, path in (
        (LibraryOrigin.PREBUILT, search.prebuilt / f"{variant.name}.so"),
        (LibraryOrigin.CACHED, _cached(variant, key, search.cache)),
    ):
        if path.is_file():
            try:
                check(path, key)
            except BadSeal as reason:
                notes.append(f"{reason}.")
            else:
                yield origin, path


def _cached(variant: Variant, key: str, cache: Path) -> Path:
    return cache / f"decoder-{variant.name}-{key}.so"


def _compiled(variant: Variant, search: LibrarySearch, notes: list[str]) -> ctypes.CDLL:
    """Compile and load a variant, and keep it if the cache can be written. Raises NoCompiler."""
    key = variant_key(variant, search.machine)
    built = library_for(variant, search.machine)
    path = _cached(variant, key, search.cache)
    try:
        _keep(built, path)
    except OSError as reason:
        notes.append(f"The compiled {variant.name} is not kept: {path.parent}: {reason.strerror}.")
        with tempfile.TemporaryDirectory(prefix="weftline-") as folder:
            path = Path(folder) / "decoder.so"
            path.write_bytes(built)
            return _opened(path)
    for stale in path.parent.glob(f"decoder-{variant.name}-*.so"):
        if stale != path:  # of older sources; a running engine keeps its open file
            stale.unlink(missing_ok=True)
    return _opened(path)


def _keep(built: bytes, path: Path) -> None:
    """Write the file at once or not at all, because two engines may start together."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder) / path.name
        written.write_bytes(built)
        written.replace(path)


def _opened(path: Path) -> ctypes.CDLL:
    """The library just built. Raises NoCompiler if the system refuses it."""
    try:
        return _open(path)
    except OSError as reason:
        raise NoCompiler(f"what was built does not load: {reason}") from None


def _open(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _share_openmp() -> None:
    """Make an OpenMP library visible to the decoder, which is linked without one. Raises NoKernels
    if there is none.

    The library that the process has loaded comes first, because two of them would compete for the
    cores: torch has one of its own. Then come the system's, and the one that is in the wheel.
    """
    for path in (*_loaded_openmp(), OPENMP, str(FOLDER / "lib" / OPENMP)):
        with suppress(OSError):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return
    raise NoKernels(f"No {OPENMP} loads: install libgomp1, or libgomp on Fedora.")


def _loaded_openmp() -> list[str]:
    """The OpenMP libraries of this process."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    return [
        line.split(maxsplit=5)[5]
        for line in lines
        if any(name in line for name in ("libgomp", "libiomp", "libomp"))
    ][:1]


def _reasons(notes: list[str], able: bool, machine: Cpu, more: str = "") -> str:
    """All sentences as one text."""
    said = list(notes)
    if not able:
        why = no_variant(machine)
        said.append(f"{why[0].upper()}{why[1:]}.")
    elif more:
        said.append(more)
    return " ".join(dict.fromkeys(said))
