"""The CPU as a device: numpy's arrays in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.device import Pairs
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.free_memory import available_bytes

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Here:
    """Arrays that are in host memory already."""

    arrays: list[Values]

    def values(self) -> list[Values]:
        return self.arrays


class HostRows:
    """`RowMath` by numpy."""

    def alike(self, x: Values, other: Values) -> Values:
        return x.astype(other.dtype)

    def wide(self, x: Values) -> Values:
        return x.astype(np.float64)

    def best(self, x_PZ: Values) -> tuple[Values, Values]:
        places_P = x_PZ.argmax(axis=-1)
        return self.at(x_PZ, places_P), places_P

    def largest(self, x_PZ: Values, count: int) -> tuple[Values, Values]:
        """Of equal numbers the first comes first."""
        rows, size = x_PZ.shape
        if 0 < count < size:
            places = np.argpartition(x_PZ, size - count, axis=-1)[:, size - count :]
            places.sort(axis=-1)
        else:
            places = np.broadcast_to(np.arange(count), (rows, count))
        order = np.argsort(-np.take_along_axis(x_PZ, places, -1), axis=-1, kind="stable")
        places = np.take_along_axis(places, order, -1)
        return np.take_along_axis(x_PZ, places, -1), places

    def at(self, x_PZ: Values, places_P: Values) -> Values:
        return np.take_along_axis(x_PZ, places_P[:, None], -1)[:, 0]

    def log_sum_exp(self, x_PZ: Values) -> Values:
        top_P = x_PZ.max(axis=-1)
        top_P = np.where(np.isfinite(top_P), top_P, 0.0)
        found: Values = np.log(np.exp(x_PZ - top_P[:, None]).sum(axis=-1)) + top_P
        return found

    def passed(self, sums_PZ: Values, share_P: Values) -> Values:
        rows = zip(sums_PZ, share_P, strict=True)
        return np.array([row.searchsorted(share, "right") for row, share in rows], np.int64)

    def bits(self, masks_PW: npt.NDArray[np.int32], count: int) -> Values:
        found = np.unpackbits(masks_PW.view(np.uint8), axis=1, bitorder="little")
        return found[:, :count].view(np.bool_)


class HostBlocks:
    """`CacheBlocks` in host memory. A saved context has its blocks in dimension 3, too."""

    def copy(self, cache: Values, pairs: Pairs) -> None:
        sources, targets = zip(*pairs, strict=True)
        cache[:, :, :, list(targets)] = cache.take(sources, axis=3)

    def wipe(self, cache: Values, blocks: Sequence[int], place: int | None = None) -> None:
        part = cache if place is None else cache[:, :, :, :, place]
        part[:, :, :, list(blocks)] = 0

    def save(self, cache: Values, blocks: Sequence[int]) -> Values:
        return cache.take(np.asarray(blocks, np.intp), axis=3)

    def restore(self, cache: Values, saved: Values, pairs: Pairs) -> None:
        sources, targets = zip(*pairs, strict=True)
        cache[:, :, :, list(targets)] = saved.take(sources, axis=3)


class HostDevice:
    """`ComputeDevice` of the CPU. What it copies and computes is done when a method returns."""

    kind = name = "cpu"
    immediate = True
    xp = np
    rows = HostRows()
    blocks = HostBlocks()

    def free_bytes(self) -> int:
        """Bytes that can be allocated without swapping."""
        if (found := available_bytes()) is None:
            raise ModelError("this system does not say how much memory is free; give --kv-tokens")
        return found

    def computing(self) -> AbstractContextManager[object]:
        """Rows that are not finite are found at their tokens, and need no warnings."""
        return np.errstate(divide="ignore", invalid="ignore", over="ignore")

    def put(self, values: Values | Sequence[int]) -> Values:
        return np.asarray(values)

    def fetch(self, arrays: Sequence[Values]) -> Here:
        return Here(list(arrays))

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Values:
        return np.zeros(shape, dtype)


HOST = HostDevice()
