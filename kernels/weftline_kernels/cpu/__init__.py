"""The CPU path: the C decoder, its variants for instruction sets, and how one is found."""

from __future__ import annotations

from weftline_kernels.cpu.compiler import SOURCE, NoCompiler
from weftline_kernels.cpu.loader import (
    FLAGS,
    NoKernels,
    Origin,
    Search,
    VariantChoice,
    expect,
    library,
    load,
)
from weftline_kernels.cpu.variants import Machine, emulates_bfloat16, runnable, this_machine

__all__ = [
    "FLAGS",
    "SOURCE",
    "Machine",
    "NoCompiler",
    "NoKernels",
    "Origin",
    "Search",
    "VariantChoice",
    "emulates_bfloat16",
    "expect",
    "library",
    "load",
    "runnable",
    "this_machine",
]
