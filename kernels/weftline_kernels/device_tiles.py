"""The tiles of a step in the memory of a device, in buffers that a CUDA graph can hold on to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weftline_kernels.staging import Staging
from weftline_kernels.tiles import FIELDS, Ints32, Tiles


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most of each that a step may have; a captured graph is launched for this much."""

    tiles: int
    pages: int
    queries: int
    rows: int
    slots: int

    def holds(self, tiles: Tiles) -> bool:
        """Whether a step's tiles fit."""
        return (
            len(tiles.fields_TF) <= self.tiles
            and len(tiles.pages) <= self.pages
            and len(tiles.queries_Q3) <= self.queries
            and len(tiles.first_R) - 1 <= self.rows
            and tiles.slots <= self.slots
        )


class DeviceTiles:
    """One int32 buffer, so that a step's tiles go to the device in one copy. Its pages, which may
    be many more than a step has, come last and are copied as far as they are used."""

    def __init__(
        self, capacity: Capacity, narrow_rows: int, wide_rows: int, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.narrow_rows = narrow_rows
        self.wide_rows = wide_rows
        needs = (
            *(2, capacity.tiles * FIELDS, capacity.queries * 3),
            *(capacity.rows + 1, capacity.pages),
        )
        # Each begins at a multiple of 16 bytes: Triton compiles a kernel anew, in some 2 s, for
        # pointers that do and that do not.
        sizes = [-(-need // 4) * 4 for need in needs]
        self._staging = Staging(sum(sizes), torch.int32, device)
        self._offsets: list[int] = np.cumsum((0, *sizes)).tolist()
        views = torch.split(self._staging.tensor, sizes)
        self.counts: Tensor = views[0]
        self.fields_TF: Tensor = views[1]
        self.queries_Q3: Tensor = views[2]
        self.first_R: Tensor = views[3]
        self.pages: Tensor = views[4]

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
        if (tiles.narrow_rows, tiles.wide_rows) != (self.narrow_rows, self.wide_rows):
            raise ValueError("these tiles are for another number of query heads a KV head")
        if not self.capacity.holds(tiles):
            raise ValueError(f"the step's tiles exceed {self.capacity}")
        # Rows behind the step's have no slots: the merge passes them by.
        padding = np.full(self.capacity.rows + 1 - len(tiles.first_R), tiles.slots, np.int32)
        values: tuple[Ints32, ...] = (
            np.array([tiles.wide, len(tiles.fields_TF)], np.int32),
            *(tiles.fields_TF.ravel(), tiles.queries_Q3.ravel()),
            *(np.concatenate([tiles.first_R, padding]), tiles.pages),
        )
        parts = zip(self._offsets, values, strict=False)
        self._staging.send(parts, self._offsets[4] + len(tiles.pages))
