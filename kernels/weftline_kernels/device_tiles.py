"""The tiles of a step in the memory of a device, in buffers that a CUDA graph can hold on to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weftline_kernels.tiles import FIELDS, Ints32, Tiles


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most of each that a step may have; a captured graph is launched for this much."""

    tiles: int
    pages: int
    queries: int
    rows: int
    slots: int


class DeviceTiles:
    """One int32 buffer, so that a step's tiles go to the device in one copy."""

    def __init__(
        self, capacity: Capacity, narrow_rows: int, wide_rows: int, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.narrow_rows = narrow_rows
        self.wide_rows = wide_rows
        sizes = (
            *(2, capacity.tiles * FIELDS, capacity.pages, capacity.queries * 3),
            capacity.rows + 1,
        )
        self._buffer = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._offsets = np.cumsum((0, *sizes)).tolist()
        views = torch.split(self._buffer, list(sizes))
        self.counts: Tensor = views[0]
        self.fields_TF: Tensor = views[1]
        self.pages: Tensor = views[2]
        self.queries_Q3: Tensor = views[3]
        self.first_R: Tensor = views[4]

    @classmethod
    def of(cls, tiles: Tiles, device: torch.device) -> DeviceTiles:
        """Buffers of just the size of `tiles`, with them inside."""
        capacity = Capacity(
            *(len(tiles.fields_TF), len(tiles.pages), len(tiles.queries_Q3)),
            *(len(tiles.first_R) - 1, tiles.slots),
        )
        found = cls(capacity, tiles.narrow_rows, tiles.wide_rows, device)
        found.load(tiles)
        return found

    def load(self, tiles: Tiles) -> None:
        """Replace what the buffers hold, in the order of the current stream.

        The host's memory is free again when this returns. Raises ValueError where `tiles` exceed
        the capacity or have other block sizes.
        """
        capacity = self.capacity
        rows = len(tiles.first_R) - 1
        if (tiles.narrow_rows, tiles.wide_rows) != (self.narrow_rows, self.wide_rows):
            raise ValueError("these tiles are for another number of query heads a KV head")
        if (
            len(tiles.fields_TF) > capacity.tiles
            or len(tiles.pages) > capacity.pages
            or len(tiles.queries_Q3) > capacity.queries
            or rows > capacity.rows
            or tiles.slots > capacity.slots
        ):
            raise ValueError(f"the step's tiles exceed {capacity}")
        # Rows behind the step's have no slots: the merge passes them by.
        padding = np.full(capacity.rows - rows, tiles.slots, np.int32)
        values: tuple[Ints32, ...] = (
            np.array([tiles.wide, len(tiles.fields_TF)], np.int32),
            *(tiles.fields_TF.ravel(), tiles.pages, tiles.queries_Q3.ravel()),
            np.concatenate([tiles.first_R, padding]),
        )
        packed = np.zeros(self._offsets[-1], np.int32)
        for offset, part in zip(self._offsets, values, strict=False):
            packed[offset : offset + len(part)] = part
        self._buffer.copy_(torch.from_numpy(packed))
