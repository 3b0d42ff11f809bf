"""The attention of steps on a device, by our kernel.

Letters of the shapes: R = packed query rows, N = query heads, K = KV heads, H = head size,
B = blocks of the pool, S = tokens per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from weftline_kernels.attention import Attention
from weftline_kernels.attention_triton import attend, has_wide, units
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.tiles import Cutter
from weftline_kernels.work_list import WorkList


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention of a model is like, the same in all layers."""

    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    scale: float


class StepAttention:
    """Buffers of a step, and attention by what they hold.

    With a `room` the buffers have its size and keep their addresses, and steps of fewer rows are
    padded.
    """

    def __init__(
        self, shape: AttentionShape, device: torch.device, room: Capacity | None = None
    ) -> None:
        self._scale = shape.scale
        self._device = device
        self._room = room
        self._cutter = cutter_of(shape, device)
        self._tiles: DeviceTiles | None = None
        if room is not None:
            self._tiles = DeviceTiles(room, *self._cutter.rows, device)

    @property
    def wide(self) -> bool:
        """Whether the loaded step has wide tiles. A captured graph has them or has none."""
        assert self._tiles is not None
        return self._tiles.wide > 0

    def widths(self) -> tuple[bool, ...]:
        """Whether decode steps may have wide tiles: each case that is captured."""
        assert self._room is not None, "only steps of a fixed size are captured"
        narrow, wide = self._cutter.rows
        can_be_wide = narrow < wide and self._room.rows * self._cutter.group > narrow
        return (False, True) if can_be_wide else (False,)

    def function(self, *, wide: bool) -> Attention:
        """Attention of a layer by the buffers, for steps with wide tiles or without."""
        return partial(self._attend, wide)

    def load(self, work: WorkList) -> bool:
        """Load a step; False if its tiles do not fit the room."""
        split = self._cutter.split_length(work)
        tiles = self._cutter.cut(work, split)
        if self._room is None:
            self._tiles = DeviceTiles.of(tiles, self._device)
            return True
        longest = max(item.length for item in work.items)
        # Longer tiles balance the device less well, but a launched step takes far longer.
        while not self._room.holds(tiles) and split < longest:
            split *= 2
            tiles = self._cutter.cut(work, split)
        if not self._room.holds(tiles):
            return False
        assert self._tiles is not None
        self._tiles.load(tiles)
        return True

    def _attend(self, wide: bool, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor) -> Tensor:
        assert self._tiles is not None
        return attend(self._tiles, q_RNH, keys_KBSH, values_KBSH, self._scale, wide=wide)


def cutter_of(shape: AttentionShape, device: torch.device) -> Cutter:
    """What cuts a step of this shape into tiles."""
    group, is_wide = shape.heads // shape.kv_heads, has_wide(shape.dtype, shape.head_size)
    return Cutter(group, shape.kv_heads, units(device), shape.block_size, is_wide)
