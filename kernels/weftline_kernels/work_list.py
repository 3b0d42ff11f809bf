"""What attention has to do in a step, as one flat list of items that all layers reuse.

An item is a run of pages and the queries that read it. A query's `visible` is how many tokens of
the item it may see, which makes shared prefixes (all of it) and causal chunks (one more for each
query) the same thing. A query that stands in several items gets their results merged by
log-sum-exp, so the context tree may share at any number of levels; nothing here knows of contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Sharing costs an item more: one gather, one product and a merge, some 60 µs a layer on two
# cores, which is the time in which they read 2 MB, about 32 pages of 3 heads of 64 in bfloat16.
MIN_PAGES_SAVED = 32
NEVER_SHARED = 1 << 62  # pages that no sharing saves: every sequence reads its own table


@dataclass(frozen=True, slots=True)
class Rows:
    """A sequence's part in a step: `count` queries from row `first` of the packed tokens on, the
    first of them at position `start` of the sequence, whose pages are `pages`."""

    pages: Sequence[int]
    first: int
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class Item:
    """`pages` hold `length` tokens; row `queries[i]` sees the first `visible[i]` of them."""

    pages: Ints
    length: int
    queries: Ints
    visible: Ints


@dataclass(frozen=True, slots=True)
class WorkList:
    """The items of a step over `rows` packed queries; `merged` says that some query has several."""

    items: tuple[Item, ...]
    rows: int
    merged: bool


def build(
    parts: Sequence[Rows], page_size: int, *, min_pages_saved: int = MIN_PAGES_SAVED
) -> WorkList:
    """The work list of a step.

    Parts whose tables begin with the same pages share an item for them where that saves at least
    `min_pages_saved` page reads; only pages that lie wholly before a part's first query count, so
    whoever fills a page in this very step is not in the group.
    """
    items: list[Item] = []
    done = [0] * len(parts)  # pages of each part that a shared item covers
    tables = [tuple(part.pages[: part.start // page_size]) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: tables[i])
    for members, begin, end in _runs(order, tables, 0, 0, min_pages_saved):
        pages = np.asarray(tables[members[0]][begin:end], dtype=np.int64)
        queries = np.concatenate(
            [np.arange(parts[i].first, parts[i].first + parts[i].count) for i in members]
        )
        length = len(pages) * page_size
        items.append(Item(pages, length, queries, np.full(len(queries), length)))
        for i in members:
            done[i] = end
    for part, covered in zip(parts, done, strict=True):
        before = covered * page_size
        length = part.start + part.count - before
        last = -(-(part.start + part.count) // page_size)
        items.append(
            Item(
                np.asarray(part.pages[covered:last], dtype=np.int64),
                length,
                np.arange(part.first, part.first + part.count),
                np.arange(part.start + 1 - before, length + 1),
            )
        )
    return WorkList(tuple(items), sum(part.count for part in parts), any(done))


def _runs(
    members: Sequence[int],
    tables: Sequence[tuple[int, ...]],
    begin: int,
    split: int,
    min_saved: int,
) -> Iterator[tuple[Sequence[int], int, int]]:
    """(members, first page, past the last page) of each run of pages worth sharing.

    `members` are sorted by table and equal up to page `split`, of which no item covers the pages
    from `begin` on. A run that saves too little goes to the branches below it.
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
    """How many leading pages two tables have in common; in sorted order, also all between them."""
    count = min(len(first), len(last))
    for i in range(count):
        if first[i] != last[i]:
            return i
    return count
