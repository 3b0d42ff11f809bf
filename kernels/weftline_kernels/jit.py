"""Triton where it is installed, and a decorator for kernels that can be imported without it.

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
# The interpreter computes bfloat16 products and sums wrongly without a word (errors near 1e10), so
# kernels widen to float32 there; on a device they keep the tensor cores' type.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class _Missing:
    """Stands for a kernel where Triton is not installed; launching it says so."""

    def __getitem__(self, grid: object) -> Any:
        raise RuntimeError("Triton is not installed: install weftline[gpu], or use the torch path")


def kernel(function: Callable[..., Any]) -> Any:
    """`triton.jit`, or a stand-in that raises RuntimeError when it is launched."""
    return triton.jit(function) if HAS_TRITON else _Missing()


def power_of_two(count: int) -> int:
    """The least power of two that is at least `count`, which is how wide a block may be."""
    return 1 << max(0, count - 1).bit_length()
