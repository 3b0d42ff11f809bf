"""The small operations of a decoder layer as sets: torch for the CPU, Triton for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from weftline_kernels.kv_store import kv_store, kv_store_triton
from weftline_kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_triton,
    rms_norm,
    rms_norm_triton,
)
from weftline_kernels.rope_store import rope_store, rope_store_triton
from weftline_kernels.short_conv import short_conv
from weftline_kernels.silu_mul import silu_mul, silu_mul_triton


class Operations(NamedTuple):
    """One implementation of each operation. The files of the functions give shapes and errors."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope_store: Callable[..., Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    kv_store: Callable[[Tensor, Tensor, Tensor], None]
    short_conv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


TORCH = Operations(rms_norm, add_rms_norm, rope_store, silu_mul, kv_store, short_conv)
# No device runs a model with convolutions yet.
TRITON = Operations(
    rms_norm_triton,
    add_rms_norm_triton,
    rope_store_triton,
    silu_mul_triton,
    kv_store_triton,
    short_conv,
)
