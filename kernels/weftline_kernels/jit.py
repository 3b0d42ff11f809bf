"""Imports Triton if it is installed, and a decorator for kernels that works without it.

`TRITON_INTERPRET=1`, set before this module is imported, runs every kernel on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        triton = tl = None

__all__ = ["HAS_TRITON", "INTERPRETED", "kernel", "power_of_two", "tl"]

HAS_TRITON = triton is not None
# The interpreter silently computes wrong bfloat16 products and sums (errors near 1e10). So kernels
# convert to float32 there. On a device they keep bfloat16, for the tensor cores.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class _Missing:
    """Stands for a kernel without Triton. Launching it raises RuntimeError."""

    def __getitem__(self, grid: object) -> Any:
        raise RuntimeError("Triton is not installed: install weftline[gpu], or use the torch path")


def kernel(function: Callable[..., Any]) -> Any:
    """Apply `triton.jit`, or return a stand-in that raises RuntimeError when it is launched."""
    return triton.jit(function) if HAS_TRITON else _Missing()


def power_of_two(count: int) -> int:
    """Return the least power of two that is at least `count`. Triton needs such sizes."""
    return 1 << max(0, count - 1).bit_length()
