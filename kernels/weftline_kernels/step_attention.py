"""The attention of steps on a device: by our kernel alone, or by a library where nothing is shared.

Letters of the shapes: R = packed query rows, N = query heads, K = KV heads, H = head size,
B = blocks of the pool, S = tokens per block.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from weftline_kernels.attention import Attention
from weftline_kernels.attention_triton import attend, has_wide, units
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.library_attention import AttentionShape, OwnAttention
from weftline_kernels.own_merge import attend_beside
from weftline_kernels.own_rows import OwnRows, shared_part, with_slots
from weftline_kernels.tiles import Cutter
from weftline_kernels.work_list import WorkList


class StepKind(StrEnum):
    """What attention of a step is like. The fastest kernel of each may be another one."""

    DECODE = "decoding"
    SHARED = "decoding behind a shared prefix"
    PROMPT = "prompts"


class Variant(StrEnum):
    """What is launched for a step: a captured graph has one of them."""

    OWN = "own"  # a library alone
    NARROW = "narrow"  # our narrow tiles, with a library for the own part or without
    WIDE = "wide"  # the same with wide tiles


class StepAttention:
    """Buffers of a step, and attention by what they hold.

    `own` computes what each sequence has alone; without it, our kernel computes everything. With a
    `room` the buffers have its size and keep their addresses, and steps of fewer rows are padded.
    """

    def __init__(
        self,
        shape: AttentionShape,
        device: torch.device,
        own: OwnAttention | None = None,
        room: Capacity | None = None,
    ) -> None:
        self._scale = shape.scale
        self._device = device
        self._own = own
        self._room = room
        self._cutter = cutter_of(shape, device)
        self._tiles: DeviceTiles | None = None
        if room is not None:
            self._tiles = DeviceTiles(room, *self._cutter.rows, device)
            if own is not None:
                own.load(OwnRows.nothing().padded(room.rows))
        self.loaded = Variant.NARROW if own is None else Variant.OWN

    def variants(self, *kinds: StepKind) -> tuple[Variant, ...]:
        """All that decode steps of these kinds may need."""
        assert self._room is not None, "only steps of a fixed size are captured"
        narrow, wide = self._cutter.rows
        can_be_wide = narrow < wide and self._room.rows * self._cutter.group > narrow
        tiled: tuple[Variant, ...] = (Variant.NARROW,)
        if can_be_wide:
            tiled = Variant.NARROW, Variant.WIDE
        if self._own is None:
            return tiled
        alone: tuple[Variant, ...] = (Variant.OWN,) if StepKind.DECODE in kinds else ()
        return alone + tiled if StepKind.SHARED in kinds else alone

    def function(self, variant: Variant) -> Attention:
        """Attention of a layer by the buffers, for steps of this variant."""
        return partial(self._attend, variant)

    def load(self, work: WorkList) -> bool:
        """Load a step; False if its tiles do not fit the room. `loaded` is then its variant."""
        mine = work if self._own is None else shared_part(work)
        self.loaded = Variant.OWN
        if mine.items:
            if not self._load_tiles(mine):
                return False
            assert self._tiles is not None
            self.loaded = Variant.WIDE if self._tiles.wide else Variant.NARROW
        if self._own is not None:
            own = OwnRows.of(work)
            self._own.load(own if self._room is None else own.padded(self._room.rows))
        return True

    def _load_tiles(self, work: WorkList) -> bool:
        split = self._cutter.split_length(work)
        tiles = self._cutter.cut(work, split)
        if self._own is not None:
            tiles = with_slots(tiles)
        if self._room is None:
            self._tiles = DeviceTiles.of(tiles, self._device)
            return True
        longest = max(item.length for item in work.items)
        # Longer tiles balance the device less well, but a launched step takes far longer.
        while not self._room.holds(tiles) and split < longest:
            split *= 2
            tiles = self._cutter.cut(work, split)
            if self._own is not None:
                tiles = with_slots(tiles)
        if not self._room.holds(tiles):
            return False
        assert self._tiles is not None
        self._tiles.load(tiles)
        return True

    def _attend(
        self, variant: Variant, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor
    ) -> Tensor:
        parts = q_RNH, keys_KBSH, values_KBSH, self._scale
        if variant is Variant.OWN:
            assert self._own is not None
            return self._own(*parts[:3])[0]
        assert self._tiles is not None
        wide = variant is Variant.WIDE
        if self._own is None:
            return attend(self._tiles, *parts, wide=wide)
        own = self._own(*parts[:3])
        return attend_beside(self._tiles, *parts, own, self._own.to_log2, wide=wide)


def cutter_of(shape: AttentionShape, device: torch.device) -> Cutter:
    """What cuts a step of this shape into tiles."""
    group, is_wide = shape.heads // shape.kv_heads, has_wide(shape.dtype, shape.head_size)
    return Cutter(group, shape.kv_heads, units(device), shape.block_size, is_wide)
