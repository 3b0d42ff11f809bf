"""The tiles of a step in device memory, in buffers whose addresses a CUDA graph can keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weftline_kernels.staging import Staging
from weftline_kernels.tiles import FIELDS, Ints32, Tiles


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most of each that a step may have. A captured graph is launched for these sizes."""

    tiles: int
    blocks: int
    queries: int
    rows: int
    slots: int

    def holds(self, tiles: Tiles) -> bool:
        """Return whether a step's tiles fit."""
        return (
            len(tiles.fields_TF) <= self.tiles
            and len(tiles.blocks) <= self.blocks
            and len(tiles.queries_Q3) <= self.queries
            and len(tiles.first_R) - 1 <= self.rows
            and tiles.slots <= self.slots
        )


class DeviceTiles:
    """The tiles in one int32 buffer, so that one copy brings a step's tiles to the device.

    The block numbers come last. There may be room for many more than a step has, and only the used
    part is copied.
    """

    def __init__(
        self, capacity: Capacity, narrow_rows: int, wide_rows: int, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.narrow_rows = narrow_rows
        self.wide_rows = wide_rows
        self.wide = 0  # how many of the loaded tiles are wide
        needs = (
            2,
            capacity.tiles * FIELDS,
            capacity.queries * 3,
            capacity.rows + 1,
            capacity.blocks,
        )
        # Each part begins at a multiple of 16 bytes. Triton compiles a kernel again, in about 2 s,
        # when a pointer's alignment changes.
        sizes = [-(-need // 4) * 4 for need in needs]
        self._staging = Staging(sum(sizes), torch.int32, device)
        self._offsets: list[int] = np.cumsum((0, *sizes)).tolist()
        views = torch.split(self._staging.tensor, sizes)
        self.counts: Tensor = views[0]
        self.fields_TF: Tensor = views[1]
        self.queries_Q3: Tensor = views[2]
        self.first_R: Tensor = views[3]
        self.blocks: Tensor = views[4]

    @classmethod
    def of(cls, tiles: Tiles, device: torch.device) -> DeviceTiles:
        """Return buffers of exactly the size of `tiles`, filled with them."""
        capacity = Capacity(
            tiles=len(tiles.fields_TF),
            blocks=len(tiles.blocks),
            queries=len(tiles.queries_Q3),
            rows=len(tiles.first_R) - 1,
            slots=tiles.slots,
        )
        found = cls(capacity, tiles.narrow_rows, tiles.wide_rows, device)
        found.load(tiles)
        return found

    def load(self, tiles: Tiles) -> None:
        """Replace the content of the buffers, in the order of the current stream.

        `tiles` may be changed after this returns. Raises ValueError if they exceed the capacity, or
        were cut for another number of query heads per KV head.
        """
        if (tiles.narrow_rows, tiles.wide_rows) != (self.narrow_rows, self.wide_rows):
            raise ValueError("these tiles are for another number of query heads per KV head")
        if not self.capacity.holds(tiles):
            raise ValueError(f"the step's tiles exceed {self.capacity}")
        self.wide = tiles.wide
        # Rows after the step's last one have no slots, so the merge skips them.
        padding = np.full(self.capacity.rows + 1 - len(tiles.first_R), tiles.slots, np.int32)
        values: tuple[Ints32, ...] = (
            np.array([tiles.wide, len(tiles.fields_TF)], np.int32),
            tiles.fields_TF.ravel(),
            tiles.queries_Q3.ravel(),
            np.concatenate([tiles.first_R, padding]),
            tiles.blocks,
        )
        parts = zip(self._offsets, values, strict=False)
        self._staging.send(parts, self._offsets[4] + len(tiles.blocks))
