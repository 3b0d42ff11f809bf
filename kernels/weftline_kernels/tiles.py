"""Cuts a work list into tiles: what one program of the attention kernel does at a time.

A tile is at most `split` tokens of an item and as many of its queries as fit the rows of a matrix
product, the G query heads of a KV head being rows of it too. What a query gets from several tiles
is merged, so it has one slot a tile; a query of a single tile needs none.
T = tiles, Q = queries over all items, R = packed query rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weftline_kernels.jit import power_of_two
from weftline_kernels.work_list import WorkList

Ints32 = npt.NDArray[np.int32]

MIN_ROWS = 16  # of a matrix product on tensor cores
WIDE_ROWS = 64  # the fewest for which an H200 uses its full rate (wgmma)
FIELDS = 6
# An item of so many query blocks fills a device by itself; split further, it would only write
# more partial results.
MANY_BLOCKS = 4
TILES_PER_UNIT = 4  # tiles × KV heads a multiprocessor, so that the last ones leave few idle


@dataclass(frozen=True, slots=True)
class Tiles:
    """`fields_TF`: offset in `pages`, first token, tokens, offset in `queries_Q3`, queries, part.

    Tiles of up to `wide_rows` rows come first (`wide` of them), then those of `narrow_rows`, each
    kind with its longest first. `queries_Q3` is row, visible tokens of the item, and first slot or
    -1; the slots of row r are `first_R[r]` up to `first_R[r + 1]`.
    """

    fields_TF: Ints32
    wide: int
    pages: Ints32
    queries_Q3: Ints32
    first_R: Ints32
    narrow_rows: int
    wide_rows: int

    @property
    def slots(self) -> int:
        return int(self.first_R[-1])


def split_length(work: WorkList, kv_heads: int, units: int, page_size: int) -> int:
    """Tokens a tile, so that a device of `units` multiprocessors gets some tiles for each.

    Within 256, below which partial results cost more than balance gives, and 2,048.
    """
    tokens = sum(item.length for item in work.items)
    wanted = tokens * kv_heads // (TILES_PER_UNIT * units)
    step = 128 * page_size // np.gcd(128, page_size)
    return int(-(-min(2048, max(256, wanted)) // step) * step)


def block_rows(group: int) -> tuple[int, int]:
    """(narrow, wide): rows of the two kinds of tiles for `group` query heads a KV head."""
    narrow = max(MIN_ROWS, power_of_two(group))
    return narrow, max(WIDE_ROWS, narrow)


def cut(work: WorkList, page_size: int, group: int, split: int) -> Tiles:
    """The tiles of `work` for `group` query heads a KV head; `split` is a multiple of the page."""
    if split % page_size:
        raise ValueError(f"a split of {split} tokens cuts a page of {page_size}")
    narrow_rows, wide_rows = block_rows(group)
    rows_Q = np.concatenate([item.queries for item in work.items])
    visible_Q = np.concatenate([item.visible for item in work.items])
    queries_I = np.array([len(item.queries) for item in work.items])
    pages_I = np.array([len(item.pages) for item in work.items])
    before_I = np.cumsum(queries_I) - queries_I
    wide_I = queries_I * group > narrow_rows
    block_I = np.where(wide_I, wide_rows, narrow_rows) // group
    blocks_I = -(-queries_I // block_I)

    item_B, index_B = _spread(blocks_I)
    begin_B = before_I[item_B] + index_B * block_I[item_B]
    queries_B = np.minimum(block_I[item_B], (before_I + queries_I)[item_B] - begin_B)
    longest_B = np.maximum.reduceat(visible_Q, begin_B)
    step_I = np.where(blocks_I < MANY_BLOCKS, split, np.maximum.reduceat(visible_Q, before_I))
    parts_B = -(-longest_B // step_I[item_B])

    block_T, part_T = _spread(parts_B)
    item_T = item_B[block_T]
    begin_T = part_T * step_I[item_T]
    length_T = np.minimum(step_I[item_T], longest_B[block_T] - begin_T)
    page_T = (np.cumsum(pages_I) - pages_I)[item_T] + begin_T // page_size
    columns = (page_T, begin_T, length_T, begin_B[block_T], queries_B[block_T], part_T)
    order = np.lexsort((-length_T, ~wide_I[item_T]))
    slot_Q, first_R = _slots(rows_Q, np.repeat(parts_B, queries_B), work.rows)
    return Tiles(
        np.stack(columns, axis=1).astype(np.int32)[order],
        int(wide_I[item_T].sum()),
        np.concatenate([item.pages for item in work.items]).astype(np.int32),
        np.stack([rows_Q, visible_Q, slot_Q], axis=1).astype(np.int32),
        first_R.astype(np.int32),
        narrow_rows,
        wide_rows,
    )


def _spread(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(which, how many before of the same) for `counts[i]` times each i."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _slots(
    rows_Q: npt.NDArray[np.int64], parts_Q: npt.NDArray[np.int64], rows: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(slot_Q, first_R): those of a row follow each other, whatever items its queries stand in."""
    total_R = np.zeros(rows, np.int64)
    np.add.at(total_R, rows_Q, parts_Q)
    total_R[total_R == 1] = 0
    taken_Q = np.where(total_R[rows_Q] > 0, parts_Q, 0)
    order = np.argsort(rows_Q, kind="stable")
    slot_Q = np.empty_like(rows_Q)
    slot_Q[order] = np.cumsum(taken_Q[order]) - taken_Q[order]
    slot_Q[taken_Q == 0] = -1
    return slot_Q, np.concatenate([[0], np.cumsum(total_R)])
