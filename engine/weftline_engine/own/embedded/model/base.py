"""The interface of a model: a step that it computes, and its KV cache.

T = packed tokens, V = vocabulary, R = rows whose logits are wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.device import Array, ComputeDevice
from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_kernels.work_list import WorkList


@dataclass(frozen=True, slots=True)
class Late:
    """The tokens of a step that are on the device alone: those in the rows `rows_L` are the tokens
    `from_L` of `tokens_R`, which the last step has sampled."""

    rows_L: npt.NDArray[np.int64]
    from_L: npt.NDArray[np.int64]
    tokens_R: Array


@dataclass(frozen=True, slots=True)
class StepInput:
    """The tokens of a step: ids, positions and KV slots (T), and the rows to sample from (R).

    Only a model that `overlaps` gets tokens that are `late`.
    """

    tokens_T: Array
    positions_T: Array
    slots_T: Array
    rows_R: Array
    work: WorkList
    late: Late | None = None


class Model(Protocol):
    """A forward pass over a KV cache. The model chooses the layout of the cache, but dimension 3 is
    the KV blocks. Tree attention shares a prefix if that saves reading `min_blocks_saved` blocks
    (see work_list.build)."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> ComputeDevice: ...

    @property
    def precision(self) -> str:
        """The type in which it computes, as a `config.Precision`."""
        ...

    @property
    def min_blocks_saved(self) -> int: ...

    @property
    def overlaps(self) -> bool:
        """Whether `forward` returns before the step is computed, so that the next step can be
        prepared meanwhile."""
        ...

    def forward(self, step: StepInput, cache: Array, /) -> Array:
        """Compute a step, given as numpy's arrays. Fills the tokens' KV slots, and returns
        logits (R, V) on the device, in float32 or wider."""
        ...

    def warm(self, cache: Array, /) -> None:
        """Prepare for decode steps over this cache."""
        ...

    def new_cache(self, blocks: int, block_size: int) -> Array:
        """An empty KV cache. It is zeroed, because unused rows of a block must be finite."""
        ...


_PIECE = 1 << 21  # bytes that a system with huge mappings gives out at once


def empty_cache(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Values:
    """Zeros that take no memory until they are written, because numpy maps them lazily.

    The system gives them out in pieces of 2 MB, because numpy asks for that, so the first written
    block of a head takes one. The zeros begin with a piece. Else the blocks of a head would begin
    in the middle of one, and take two.
    """
    count = math.prod(shape) * dtype.itemsize
    zeros = np.zeros(count + _PIECE, np.uint8)
    first = -zeros.ctypes.data % _PIECE
    return zeros[first : first + count].view(dtype).reshape(shape)
