"""The small operations of a decoder layer as sets: torch for the CPU, Triton for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from weftline_kernels.kv_store import kv_store, kv_store_triton
from weftline_kernels.rms_norm import rms_norm, rms_norm_triton
from weftline_kernels.rope import rope, rope_triton
from weftline_kernels.silu_mul import silu_mul, silu_mul_triton


class Operations(NamedTuple):
    """One implementation of each operation. The files of the functions give shapes and errors."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    kv_store: Callable[[Tensor, Tensor, Tensor], None]


TORCH = Operations(rms_norm, rope, silu_mul, kv_store)
TRITON = Operations(rms_norm_triton, rope_triton, silu_mul_triton, kv_store_triton)
