"""The variants of the C decoder: one for each instruction set, and which of them a machine runs.

A variant is chosen by compile flags alone. This module needs the standard library alone, because
the wheel's build imports it.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# As Linux names them in /proc/cpuinfo; "abm" is LZCNT.
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Where one of these is missing, torch computes bfloat16 by conversions, up to 499 times slower
# than float32 (pytorch's issue 146508).
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of the decoder: what the compiler is told, and what the CPU must have.

    `products` is the number of multiply-adds in one instruction; it tells what a variant costs.
    """

    name: str
    architecture: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    products: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """What decides which variants run: the architecture, and the features of the CPU."""

    architecture: str
    features: frozenset[str]


# The best one first.
VARIANTS = (
    Variant(
        "avx512_bf16",
        "x86_64",
        # Every CPU with AVX512_BF16 has VNNI, which multiplies numbers of 8 bits.
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
        _V4 | {"avx512_bf16", "avx512_vnni"},
        32,
    ),
    Variant("avx512", "x86_64", ("-march=x86-64-v4",), _V4, 16),
    Variant("avx2", "x86_64", ("-march=x86-64-v3",), _V3, 8),
    Variant("neon", "aarch64", (), frozenset({"asimd"}), 4),
)
NATIVE = "native"  # whatever the compiler finds on this machine; never in a wheel


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The machine that this process runs on.

    Where the system does not list its features, it is what the architecture promises: NEON on
    aarch64, and nothing that a variant could use on x86-64.
    """
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    features = {"asimd"} if architecture == "aarch64" else set()
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, listed = line.partition(":")
            if name.strip() in ("flags", "Features"):
                features |= set(listed.split())
                break
    return Cpu(architecture, frozenset(features))


def native(machine: Cpu) -> Variant:
    """The variant that the compiler makes for this very machine."""
    best = runnable(machine)
    products = best[0].products if best else 0
    return Variant(NATIVE, machine.architecture, ("-march=native",), frozenset(), products)


def runnable(machine: Cpu) -> tuple[Variant, ...]:
    """The variants that the machine can execute, the best one first."""
    return tuple(
        one
        for one in VARIANTS
        if one.architecture == machine.architecture and one.needs <= machine.features
    )


def order(wanted: str, machine: Cpu) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """The variants to try, in turn, and a sentence if `wanted` cannot be followed.

    `wanted` is the name of a variant, "native", or "" for the best one.
    """
    able = runnable(machine)
    if not wanted:
        return able, ()
    if wanted == NATIVE:
        return (native(machine), *able), ()
    known = {one.name: one for one in VARIANTS}
    if wanted not in known:
        names = ", ".join((*known, NATIVE))
        return able, (f"WEFTLINE_ISA is {wanted!r}, which is none of {names}.",)
    chosen = known[wanted]
    if chosen not in able:
        return able, (f"WEFTLINE_ISA is {wanted}, but {lacking(chosen, machine)}.",)
    return (chosen, *(one for one in able if one != chosen)), ()


def lacking(variant: Variant, machine: Cpu) -> str:
    """Why the machine cannot execute the variant, without a full stop."""
    if variant.architecture != machine.architecture:
        return f"this CPU is {machine.architecture} and not {variant.architecture}"
    return f"this CPU lacks {', '.join(sorted(variant.needs - machine.features))}"


def no_variant(machine: Cpu) -> str:
    """Why no variant runs here, without a full stop."""
    least = [one for one in VARIANTS if one.architecture == machine.architecture]
    if least:
        return lacking(least[-1], machine)
    return f"there are no C kernels for {machine.architecture}"


def emulates_bfloat16(machine: Cpu) -> bool:
    """Whether torch has to compute bfloat16 by conversions on this machine."""
    return not machine.features & _BFLOAT16


def cost(variant: Variant, machine: Cpu) -> str:
    """How the variant compares with the best one of this machine."""
    best: Sequence[Variant] = runnable(machine)
    if not best or variant.products >= best[0].products:
        return "the fastest that this CPU runs"
    return (
        f"{variant.products} products in an instruction, where {best[0].name} "
        f"makes {best[0].products}"
    )
