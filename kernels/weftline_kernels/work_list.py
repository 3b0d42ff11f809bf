"""The attention of a step as one flat list of items, which all layers use.

An item is a run of blocks and the queries that read it. `visible` is the number of the item's
tokens that a query may see. It is all of them for a shared prefix, and one more for each query of a
causal chunk. The results of a query that is in several items are merged by log-sum-exp. So prefixes
may be shared at any number of levels. This module knows nothing of contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# A shared item costs a gather, a product and a merge: about 60 µs per layer on two cores. In that
# time they read 2 MB, about 32 blocks of 3 heads of 64 in bfloat16.
MIN_BLOCKS_SAVED = 32
NEVER_SHARED = 1 << 62  # more blocks than any sharing saves, so every sequence reads its own table
NOWHERE = -1  # the slot of a token that is not there


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """A sequence's part of a step.

    The part has `count` queries, at rows `first` and following of the packed tokens. The first
    query is at position `start` of the sequence. `blocks` are the sequence's blocks.
    """

    blocks: Sequence[int]
    first: int
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class WorkItem:
    """`blocks` hold `length` tokens. Row `queries[i]` sees the first `visible[i]` of them.

    `start` is the position of the first of them in its sequence.
    """

    blocks: Ints
    length: int
    queries: Ints
    visible: Ints
    start: int = 0


@dataclass(frozen=True, slots=True)
class WorkList:
    """The items of a step of `rows` packed queries.

    The first `shared` items are read by several sequences. The others are one for each sequence, in
    the order of its queries: what it has alone.
    """

    items: tuple[WorkItem, ...]
    rows: int
    shared: int = 0

    @property
    def merged(self) -> bool:
        """Whether a query has several items."""
        return self.shared > 0

    def positions(self) -> Ints:
        """The position of each row in its sequence: the last one that the row sees."""
        found = np.zeros(self.rows, dtype=np.int64)
        for item in self.items:
            np.maximum.at(found, item.queries, item.start + item.visible - 1)
        return found

    def slots_before(self, count: int, block_size: int) -> Ints:
        """The KV slots of the `count` tokens before each row, the nearest first: (rows, count).
        NOWHERE before the first token of a sequence."""
        positions_R, steps_C = self.positions(), np.arange(1, count + 1)
        found_RC = np.full((self.rows, count), NOWHERE, np.int64)
        for item in self.items:
            places_QC = positions_R[item.queries, None] - steps_C - item.start
            inside_QC = (places_QC >= 0) & (places_QC < item.length)
            rows_Q, steps_Q = np.nonzero(inside_QC)
            blocks_Q, places_Q = np.divmod(places_QC[inside_QC], block_size)
            slots_Q = item.blocks[blocks_Q] * block_size + places_Q
            found_RC[item.queries[rows_Q], steps_Q] = slots_Q
        return found_RC


def build(
    parts: Sequence[SequenceRows], block_size: int, *, min_blocks_saved: int = MIN_BLOCKS_SAVED
) -> WorkList:
    """Return the work list of a step.

    Parts whose tables begin with the same blocks share an item for these, if that saves at least
    `min_blocks_saved` block reads. Only blocks that lie wholly before a part's first query count,
    so a part that fills a block in this step does not share it.
    """
    items: list[WorkItem] = []
    done = [0] * len(parts)  # blocks of each part that a shared item covers
    tables = [tuple(part.blocks[: part.start // block_size]) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: tables[i])
    for members, begin, end in _runs(order, tables, 0, 0, min_blocks_saved):
        blocks = np.asarray(tables[members[0]][begin:end], dtype=np.int64)
        queries = np.concatenate(
            [np.arange(parts[i].first, parts[i].first + parts[i].count) for i in members]
        )
        length = len(blocks) * block_size
        start = begin * block_size
        items.append(WorkItem(blocks, length, queries, np.full(len(queries), length), start))
        for i in members:
            done[i] = end
    shared = len(items)
    for part, covered in zip(parts, done, strict=True):
        before = covered * block_size
        length = part.start + part.count - before
        last = -(-(part.start + part.count) // block_size)
        items.append(
            WorkItem(
                np.asarray(part.blocks[covered:last], dtype=np.int64),
                length,
                np.arange(part.first, part.first + part.count),
                np.arange(part.start + 1 - before, length + 1),
                before,
            )
        )
    return WorkList(tuple(items), sum(part.count for part in parts), shared)


def _runs(
    members: Sequence[int],
    tables: Sequence[tuple[int, ...]],
    begin: int,
    split: int,
    min_saved: int,
) -> Iterator[tuple[Sequence[int], int, int]]:
    """Yield (members, first block, block after the last) of each run of blocks worth sharing.

    `members` are sorted by table, and their tables are equal up to block `split`. No item covers
    these blocks from `begin` on yet. If a run saves too little, the search adds it to the runs of
    the branches below it.
    """
    first = 0
    while first < len(members):
        table = tables[members[first]]
        past = first + 1
        while (
            past < len(members)
            and tables[members[past]][split : split + 1] == (table[split : split + 1])
        ):
            past += 1
        branch = members[first:past]
        first = past
        if len(branch) < 2 or len(table) <= split:
            continue
        end = _common(table, tables[branch[-1]])
        if (len(branch) - 1) * (end - begin) >= min_saved:
            yield branch, begin, end
            yield from _runs(branch, tables, end, end, min_saved)
        else:
            yield from _runs(branch, tables, begin, end, min_saved)


def _common(first: tuple[int, ...], last: tuple[int, ...]) -> int:
    """Return how many leading blocks two tables share. In sorted order, all between share them."""
    count = min(len(first), len(last))
    for i in range(count):
        if first[i] != last[i]:
            return i
    return count
