"""How a work list is cut into tiles, and where the results of a tile go."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.tiles import Cutter, Tiles, cut
from weftline_kernels.work_list import SequenceRows, WorkList, build

BLOCK = 4


def shared_by(count: int, blocks: int) -> WorkList:
    """Return `count` queries that share `blocks` blocks and see one token of an own block."""
    parts = [SequenceRows([*range(blocks), blocks + i], i, 1, blocks * BLOCK) for i in range(count)]
    return build(parts, BLOCK, min_blocks_saved=1)


def test_a_shared_item_is_split_and_its_queries_merge() -> None:
    """Two queries on 12 shared tokens get tiles for tokens 0 to 7, 8 to 11, and their own ends."""
    tiles = cut(shared_by(2, 3), BLOCK, group=4, split=8)
    assert tiles.wide == 0
    assert tiles.fields_TF.tolist() == [
        [0, 0, 8, 0, 2, 0],
        [2, 8, 4, 0, 2, 1],
        [3, 0, 1, 2, 1, 0],
        [4, 0, 1, 3, 1, 0],
    ]
    assert tiles.blocks.tolist() == [0, 1, 2, 3, 4]
    assert tiles.queries_Q3.tolist() == [[0, 12, 0], [1, 12, 3], [0, 1, 2], [1, 1, 5]]
    assert (tiles.first_R.tolist(), tiles.slots) == ([0, 3, 6], 6)


def test_a_query_of_one_tile_needs_no_slot() -> None:
    """A step without sharing, whose items are shorter than a split, has nothing to merge."""
    tiles = cut(
        build([SequenceRows([0], 0, 1, 2), SequenceRows([1, 2], 1, 1, 6)], BLOCK),
        BLOCK,
        group=1,
        split=8,
    )
    assert tiles.queries_Q3[:, 2].tolist() == [-1, -1]
    assert tiles.slots == 0
    assert tiles.fields_TF[:, 2].tolist() == [7, 3]  # the longest first


def test_a_prompt_is_cut_by_its_queries() -> None:
    """130 causal queries of 3 heads make bands of 64 // 3 = 21, as long as the last query sees."""
    tiles = cut(build([SequenceRows(list(range(40)), 0, 130, 10)], BLOCK), BLOCK, group=3, split=16)
    assert tiles.wide == len(tiles.fields_TF) == 7
    assert tiles.fields_TF[:, 4].tolist() == [4, 21, 21, 21, 21, 21, 21]
    assert tiles.fields_TF[:, 2].tolist() == [140, 136, 115, 94, 73, 52, 31]
    assert tiles.slots == 0


@pytest.mark.parametrize("group", [1, 3, 4, 8, 40])
def test_no_tile_has_more_rows_than_its_kind(group: int) -> None:
    """17 sharers and a chunk of 50: the tiles of each query cover all tokens that it may see."""
    parts = [SequenceRows([*range(9), 20 + i], i, 1, 9 * BLOCK + 2) for i in range(17)]
    parts.append(SequenceRows([*range(9), *range(40, 60)], 17, 50, 9 * BLOCK))
    work = build(parts, BLOCK, min_blocks_saved=1)
    tiles = cut(work, BLOCK, group, split=16)
    seen = np.zeros(work.rows, np.int64)
    for i, (_, begin, length, first, count, _) in enumerate(tiles.fields_TF.tolist()):
        assert count * group <= (tiles.wide_rows if i < tiles.wide else tiles.narrow_rows)
        for row, visible, _ in tiles.queries_Q3[first : first + count].tolist():
            seen[row] += min(length, max(0, visible - begin))
    assert seen.tolist() == [39] * 17 + list(range(37, 87))


def decoding(streams: int, prefix: int, suffix: int) -> WorkList:
    """A decode step of streams that share `prefix` tokens, in blocks of 16."""
    common, own = list(range(prefix // 16)), -(-suffix // 16)
    parts = [
        SequenceRows(
            [*common, *range(9999 + own * i, 9999 + own * (i + 1))], i, 1, prefix + suffix - 1
        )
        for i in range(streams)
    ]
    return build(parts, 16)


@pytest.mark.parametrize(
    ("group", "kv_heads", "step", "split"),
    [
        pytest.param(4, 8, (64, 6000, 500), 896, id="wide tiles: four a multiprocessor"),
        pytest.param(1, 32, (64, 6000, 500), 1024, id="no longer tiles than that"),
        pytest.param(4, 8, (1, 0, 500), 64, id="few tokens in short tiles"),
        pytest.param(4, 8, (1, 0, 8000), 256, id="a row in 32 parts"),
        pytest.param(4, 8, (1, 0, 131_000), 4096, id="a long row in 32 parts, too"),
        pytest.param(4, 8, (32, 0, 500), 512, id="as many tiles as programs: whole items"),
        pytest.param(1, 32, (8, 0, 4000), 4032, id="whole items, however long"),
        pytest.param(4, 8, (8, 0, 4000), 1024, id="narrow tiles: two a multiprocessor"),
        pytest.param(4, 8, (8, 2048, 500), 256, id="wide tiles are not short"),
    ],
)
def test_the_split_fills_an_h200(
    group: int, kv_heads: int, step: tuple[int, int, int], split: int
) -> None:
    """An H200 has 132 multiprocessors. The figures are streams, common tokens and own tokens."""
    assert Cutter(group, kv_heads, 132, 16).split_length(decoding(*step)) == split


def test_a_common_prefix_of_many_rows_is_split_until_its_bands_fill_the_device() -> None:
    """64 sharers of 4 query heads are 4 bands, and 8 KV heads make 32 tiles of 132
    multiprocessors: the prefix is split. On 8 multiprocessors it is not."""
    work = decoding(64, 6000, 500)
    assert Cutter(4, 8, 132, 16).cut(work).wide == 4 * -(-6000 // 896)
    assert Cutter(4, 8, 8, 16).cut(work).wide == 4


def test_buffers_take_later_steps_and_refuse_what_does_not_fit() -> None:
    """Counts say how much of the buffers is valid. Rows after the step's last one have no slots."""
    small, large = (cut(shared_by(n, 3), BLOCK, group=1, split=8) for n in (2, 5))
    held = DeviceTiles(Capacity(12, 9, 9, 4, 20), 16, 64, torch.device("cpu"))
    held.load(small)
    assert held.counts[:2].tolist() == [0, 4]
    assert held.first_R[:5].tolist() == [0, 3, 6, 6, 6]
    views = (held.counts, held.fields_TF, held.queries_Q3, held.first_R, held.blocks)
    assert {view.storage_offset() % 4 for view in views} == {0}
    assert held.fields_TF[:24].tolist() == small.fields_TF.ravel().tolist()
    assert held.queries_Q3[:12].tolist() == small.queries_Q3.ravel().tolist()
    with pytest.raises(ValueError, match="exceed"):
        held.load(large)
    with pytest.raises(ValueError, match="query heads"):
        held.load(cut(shared_by(2, 3), BLOCK, group=32, split=8))


def test_a_split_must_not_cut_a_block() -> None:
    """A tile begins at a block's first token."""
    with pytest.raises(ValueError, match="cuts a block"):
        cut(shared_by(2, 3), BLOCK, group=1, split=6)


def test_empty_kinds_have_the_shape_of_none() -> None:
    """A step of one long prompt has no narrow tile."""
    tiles: Tiles = cut(
        build([SequenceRows(list(range(20)), 0, 80, 0)], BLOCK), BLOCK, group=1, split=8
    )
    assert tiles.fields_TF.shape[1] == 6
