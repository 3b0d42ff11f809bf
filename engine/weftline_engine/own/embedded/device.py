"""The seam between the CPU and other devices: what the engine asks of a device and its arrays.

On the CPU an array is numpy's (host_device.py), on a GPU it is torch's (torch_device.py). numpy has
no bfloat16, so such numbers are an array of their 16 bits. P = rows, Z = numbers of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# An array of a device. Both libraries index and calculate by the same operators.
Array = Any
Pairs = Sequence[tuple[int, int]]


class ArraysOnTheWay(Protocol):
    """Arrays on their way to host memory."""

    def values(self) -> list[npt.NDArray[Any]]:
        """The values. Waits until the device has computed what it was told before the fetch. This
        is the one place in which the host waits for a step."""
        ...


class RowMath(Protocol):
    """What we compute on rows of numbers where numpy and torch differ."""

    def alike(self, x: Array, other: Array) -> Array:
        """The numbers of `x` in the type of `other`."""
        ...

    def wide(self, x: Array) -> Array:
        """The numbers in float64."""
        ...

    def best(self, x_PZ: Array) -> tuple[Array, Array]:
        """The highest number of each row (NaN if the row has one), and its place."""
        ...

    def largest(self, x_PZ: Array, count: int) -> tuple[Array, Array]:
        """The `count` highest numbers of each row in falling order, and their places."""
        ...

    def at(self, x_PZ: Array, places_P: Array) -> Array:
        """The number at one place of each row."""
        ...

    def log_sum_exp(self, x_PZ: Array) -> Array: ...

    def passed(self, sums_PZ: Array, share_P: Array) -> Array:
        """How many numbers of each row, which rises, are at most its share."""
        ...

    def bits(self, masks_PW: npt.NDArray[np.int32], count: int) -> Array:
        """The first `count` bits of each row of words, the lowest first, as truth values."""
        ...


class CacheBlocks(Protocol):
    """Copies of blocks of a KV cache. They are dimension 3 of it."""

    def copy(self, cache: Array, pairs: Pairs) -> None:
        """Copy block source to block target for each (source, target), all at once."""
        ...

    def wipe(self, cache: Array, blocks: Sequence[int], place: int | None = None) -> None:
        """Fill these blocks with zeros, or the place of one token in each, which is in dimension
        4."""
        ...

    def save(self, cache: Array, blocks: Sequence[int]) -> Array:
        """Copy these blocks to host memory. Raises RuntimeError or MemoryError if there is no
        memory for the copy."""
        ...

    def restore(self, cache: Array, saved: Array, pairs: Pairs) -> None:
        """Copy block source of `saved` to block target of the cache for each (source, target).
        Raises RuntimeError or MemoryError if there is no memory for the copy."""
        ...


class ComputeDevice(Protocol):
    """Where a model computes, and the arrays there.

    `xp` is the library of the arrays, of which we use what numpy and torch call alike. Where a
    device is `immediate`, the host may look at values without a wait.
    """

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        ...

    @property
    def name(self) -> str:
        """The device's name, as the engine announces it."""
        ...

    @property
    def immediate(self) -> bool: ...

    @property
    def xp(self) -> Any: ...

    @property
    def rows(self) -> RowMath: ...

    @property
    def blocks(self) -> CacheBlocks: ...

    def free_bytes(self) -> int:
        """The bytes that can be allocated now. Raises ModelError if the system does not say."""
        ...

    def computing(self) -> AbstractContextManager[object]:
        """Entered while the engine computes with arrays of the device."""
        ...

    def put(self, values: npt.NDArray[Any] | Sequence[int]) -> Array:
        """`values` as an array on the device. Does not wait for the device's current work."""
        ...

    def fetch(self, arrays: Sequence[Array]) -> ArraysOnTheWay:
        """Begin to copy arrays to host memory."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array: ...
