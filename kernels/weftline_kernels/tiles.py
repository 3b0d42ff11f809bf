"""Cuts a work list into tiles, the units of work of the attention kernel.

A band is as many queries of an item as fit the rows of a matrix product. Each query takes G rows,
one for each query head of a KV head. A tile is a band and at most `split` tokens of the item. The
results of a query's tiles are merged, so each of them has a slot. The result of a query with only
one tile needs no slot. Letters of the shapes:
T = tiles, I = items, B = bands, Q = queries of all items, R = packed query rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weftline_kernels.jit import power_of_two
from weftline_kernels.work_list import WorkList

Ints32 = npt.NDArray[np.int32]

MIN_ROWS = 16  # fewest rows of a matrix product on tensor cores
WIDE_ROWS = 64  # fewest rows at which an H200 reaches its full rate (wgmma)
FIELDS = 6
# Programs of a multiprocessor at a time. An item whose bands × KV heads give each program one fills
# a device by itself. To split its tokens would only write more partial results. With four bands as
# the limit, 64 sharers of 6,000 tokens on 8 KV heads of 4 had 32 tiles for the 132 multiprocessors
# of an H200: 189 us a layer, where 32 sharers took 52.
PROGRAMS_PER_UNIT = 2
# The first slot of a query with one tile, which needs none. The kernel reads it from an array of
# int32, which can hold no None.
NO_SLOT = -1
# Tiles × KV heads per multiprocessor, so that few are idle at the end: in a step with wide tiles,
# which take longer than narrow ones, and in a step without.
TILES_PER_UNIT, NARROW_PER_UNIT = 4, 2
# Bounds of a split, measured on an H200. One stream of 500 tokens on 8 KV heads took 7.0 us with
# tiles of 64 tokens, and 10.6 with 256; 8 streams with 2,048 common tokens, whose tiles are wide,
# took 17 us with 256, and 22 with 128. The merge reads the parts of a row in turn: 8,000 tokens
# took 18.9 us in 32 parts, and 28.6 in 125. 64 streams with 6,000 common tokens on 32 KV heads took
# 194 us with tiles of 1,024 tokens, and 216 with 2,048.
LEAST_SPLIT, LEAST_WIDE_SPLIT, MOST_SPLIT, MOST_PARTS = 64, 256, 1024, 32
# Items of nearly the same length that give nearly each program a tile are not split: 32 streams of
# 500 tokens took 24 us, and 31 us in two parts each.
FULL, EVEN = 0.9, 1.25


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a step as arrays.

    Columns of `fields_TF`: offset in `blocks`, first token, tokens, offset in `queries_Q3`,
    queries, and the tile's number among those of its band. The first `wide` tiles have up to
    `wide_rows` rows, the others up to `narrow_rows`; both kinds are sorted by length, longest
    first. Columns of `queries_Q3`: row, visible tokens of the item, and first slot, NO_SLOT for a
    query without slots. Row r has the slots `first_R[r]` to `first_R[r + 1] - 1`.
    """

    fields_TF: Ints32
    wide: int
    blocks: Ints32
    queries_Q3: Ints32
    first_R: Ints32
    narrow_rows: int
    wide_rows: int

    @property
    def slots(self) -> int:
        """Number of slots for partial results."""
        return int(self.first_R[-1])


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts the work lists of a model so that they fill its device.

    A KV head has `group` query heads. The device has `units` multiprocessors. Without `has_wide`
    all tiles are narrow.
    """

    group: int
    kv_heads: int
    units: int
    block_size: int
    has_wide: bool = True

    @property
    def rows(self) -> tuple[int, int]:
        """(narrow, wide): rows of the two kinds of tiles."""
        return tile_rows(self.group, has_wide=self.has_wide)

    def cut(self, work: WorkList, split: int | None = None) -> Tiles:
        """The tiles of `work`, at most `split` tokens long; without it, as `split_length` says."""
        many_bands = max(1, PROGRAMS_PER_UNIT * self.units // self.kv_heads)
        split = split or self.split_length(work)
        return cut(work, self.block_size, self.group, split, many_bands, has_wide=self.has_wide)

    def split_length(self, work: WorkList) -> int:
        """The tokens per tile, in whole blocks: such that each multiprocessor gets some tiles, and
        each row few parts."""
        programs = PROGRAMS_PER_UNIT * self.units
        bands = [self._bands(len(item.queries)) for item in work.items]
        longest = max(item.length for item in work.items)
        tokens = self.kv_heads * sum(
            count * item.length for count, item in zip(bands, work.items, strict=True)
        )
        is_wide = any(self._is_wide(len(item.queries)) for item in work.items)
        least = LEAST_WIDE_SPLIT if is_wide else LEAST_SPLIT
        tiles = (TILES_PER_UNIT if is_wide else NARROW_PER_UNIT) * self.units
        wanted = max(least, min(MOST_SPLIT, tokens // tiles), -(-longest // MOST_PARTS))
        items = sum(bands) * self.kv_heads
        if items >= FULL * programs and longest <= EVEN * tokens / items:
            wanted = max(wanted, longest)
        step = int(np.lcm(LEAST_SPLIT, self.block_size))
        return -(-wanted // step) * step

    def _is_wide(self, queries: int) -> bool:
        narrow, wide = self.rows
        return narrow < wide and queries * self.group > narrow

    def _bands(self, queries: int) -> int:
        return -(-queries // (self.rows[self._is_wide(queries)] // self.group))


def tile_rows(group: int, *, has_wide: bool = True) -> tuple[int, int]:
    """Return (narrow, wide): rows of the two kinds of tiles for `group` query heads per KV head.
    Both are the same if there are no wide tiles."""
    narrow = max(MIN_ROWS, power_of_two(group))
    return narrow, max(WIDE_ROWS, narrow) if has_wide else narrow


def cut(
    work: WorkList,
    block_size: int,
    group: int,
    split: int,
    many_bands: int = 4,
    *,
    has_wide: bool = True,
) -> Tiles:
    """Return the tiles of `work` for `group` query heads per KV head. An item with `many_bands` is
    not split.

    Raises ValueError unless `split`, in tokens, is a multiple of the block size.
    """
    if split % block_size:
        raise ValueError(f"a split of {split} tokens cuts a block of {block_size}")
    narrow_rows, wide_rows = tile_rows(group, has_wide=has_wide)
    rows_Q = np.concatenate([item.queries for item in work.items])
    visible_Q = np.concatenate([item.visible for item in work.items])
    queries_I = np.array([len(item.queries) for item in work.items])
    blocks_I = np.array([len(item.blocks) for item in work.items])
    before_I = np.cumsum(queries_I) - queries_I
    wide_I = queries_I * group > (narrow_rows if narrow_rows < wide_rows else np.inf)
    height_I = np.where(wide_I, wide_rows, narrow_rows) // group
    bands_I = -(-queries_I // height_I)

    item_B, index_B = _spread(bands_I)
    begin_B = before_I[item_B] + index_B * height_I[item_B]
    queries_B = np.minimum(height_I[item_B], (before_I + queries_I)[item_B] - begin_B)
    longest_B = np.maximum.reduceat(visible_Q, begin_B)
    step_I = np.where(bands_I < many_bands, split, np.maximum.reduceat(visible_Q, before_I))
    parts_B = -(-longest_B // step_I[item_B])

    band_T, part_T = _spread(parts_B)
    item_T = item_B[band_T]
    begin_T = part_T * step_I[item_T]
    length_T = np.minimum(step_I[item_T], longest_B[band_T] - begin_T)
    block_T = (np.cumsum(blocks_I) - blocks_I)[item_T] + begin_T // block_size
    columns = (block_T, begin_T, length_T, begin_B[band_T], queries_B[band_T], part_T)
    order = np.lexsort((-length_T, ~wide_I[item_T]))
    slot_Q, first_R = _slots(rows_Q, np.repeat(parts_B, queries_B), work.rows)
    return Tiles(
        np.stack(columns, axis=1).astype(np.int32)[order],
        int(wide_I[item_T].sum()),
        np.concatenate([item.blocks for item in work.items]).astype(np.int32),
        np.stack([rows_Q, visible_Q, slot_Q], axis=1).astype(np.int32),
        first_R.astype(np.int32),
        narrow_rows,
        wide_rows,
    )


def _spread(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Repeat each i `counts[i]` times. Return the i and, for each, its number among equal ones."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _slots(
    rows_Q: npt.NDArray[np.int64], parts_Q: npt.NDArray[np.int64], rows: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (slot_Q, first_R). The slots of a row are consecutive, over all its items."""
    total_R = np.zeros(rows, np.int64)
    np.add.at(total_R, rows_Q, parts_Q)
    total_R[total_R == 1] = 0
    taken_Q = np.where(total_R[rows_Q] > 0, parts_Q, 0)
    order = np.argsort(rows_Q, kind="stable")
    slot_Q = np.empty_like(rows_Q)
    slot_Q[order] = np.cumsum(taken_Q[order]) - taken_Q[order]
    slot_Q[taken_Q == 0] = NO_SLOT
    return slot_Q, np.concatenate([[0], np.cumsum(total_R)])
