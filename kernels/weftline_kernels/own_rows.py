"""What each sequence of a step has alone, as attention libraries take it.

A library attends to sequences with a block table each. So it computes the last item of each
sequence, and our kernel the items that several sequences share. The two results of a row are merged
by log-sum-exp. Letters of the shapes: Q = sequences, R = packed query rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weftline_kernels.tiles import NO_SLOT, Ints32, Tiles
from weftline_kernels.work_list import WorkList


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Sequences by their queries and blocks.

    Sequence i has the packed rows `starts[i]` to `starts[i + 1]`, and the blocks `tables[i]` to
    `tables[i + 1]` of `blocks`. They hold `lengths[i]` tokens. Its last row sees all of these, and
    each row sees one more than the row before.
    """

    starts: Ints32
    tables: Ints32
    blocks: Ints32
    lengths: Ints32

    @classmethod
    def of(cls, work: WorkList) -> OwnRows:
        """The own part of a step."""
        own = work.items[work.shared :]
        return cls(
            _offsets([len(item.queries) for item in own]),
            _offsets([len(item.blocks) for item in own]),
            np.concatenate([item.blocks for item in own]).astype(np.int32),
            np.array([item.length for item in own], np.int32),
        )

    @classmethod
    def nothing(cls) -> OwnRows:
        """No sequence."""
        none = np.zeros(0, np.int32)
        return cls(np.zeros(1, np.int32), np.zeros(1, np.int32), none, none)

    def padded(self, count: int) -> OwnRows:
        """With sequences of one row, which sees one token of block 0, up to `count` sequences.

        A captured step has a fixed number of rows. A sequence without tokens would have no
        softmax.
        """
        more = count - len(self.lengths)
        steps = np.arange(1, more + 1, dtype=np.int32)
        return OwnRows(
            np.concatenate([self.starts, self.starts[-1] + steps]),
            np.concatenate([self.tables, self.tables[-1] + steps]),
            np.concatenate([self.blocks, np.zeros(more, np.int32)]),
            np.concatenate([self.lengths, np.ones(more, np.int32)]),
        )

    @property
    def most_queries(self) -> int:
        """Rows of the sequence that has most."""
        return int(np.diff(self.starts).max())

    @property
    def most_blocks(self) -> int:
        """Blocks of the sequence that has most."""
        return int(np.diff(self.tables).max())

    def table(self) -> Ints32:
        """The blocks of each sequence (Q, most_blocks), and zeros behind them."""
        counts = np.diff(self.tables)
        found = np.zeros((len(counts), self.most_blocks), np.int32)
        found[np.arange(self.most_blocks) < counts[:, None]] = self.blocks
        return found


def shared_part(work: WorkList) -> WorkList:
    """The items of a step that several sequences share."""
    return WorkList(work.items[: work.shared], work.rows, work.shared)


def with_slots(tiles: Tiles) -> Tiles:
    """The same tiles with a slot for each partial result, also where a row has one tile only, and a
    last slot of the row for its own result."""
    rows, slots = tiles.queries_Q3[:, 0], tiles.queries_Q3[:, 2]
    alone = slots == NO_SLOT
    counts_R = np.diff(tiles.first_R)
    counts_R[rows[alone]] = 1
    counts_R[counts_R > 0] += 1
    first_R = _offsets(counts_R)
    queries_Q3 = tiles.queries_Q3.copy()
    queries_Q3[:, 2] = np.where(alone, first_R[rows], slots - tiles.first_R[rows] + first_R[rows])
    return replace(tiles, queries_Q3=queries_Q3, first_R=first_R)


def _offsets(counts: object) -> Ints32:
    """Where each of these many begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts))]).astype(np.int32)
