"""A work list as the flat arrays that the C decoder reads, cut so that all cores have work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weftline_kernels.work_list import Ints, WorkList

Int32s = npt.NDArray[np.int32]

# One sequence alone has as many tasks as KV heads (3 in SmolLM2, for 2 threads); its context is cut
# so that the last task to end is short. A cut costs a partial result, 64 numbers a head.
_PAGES = 16
# Queries of a chunk in one task. More would leave cores idle at the end of a layer.
_QUERIES = 16


class Flat(NamedTuple):
    """Items (page_at, length, query_at, queries), what they point to, and for each row of the step
    the query slots that hold its partial results: part[part_at[r] : part_at[r + 1]]."""

    item: Int32s
    page: Int32s
    query: Int32s
    visible: Int32s
    part_at: Int32s
    part: Int32s


def flatten(work: WorkList, page_size: int = 16) -> Flat:
    """Cut items of many queries by query, and long ones of few by page."""
    items: list[tuple[int, int, int, int]] = []
    pages: list[Ints] = []
    queries: list[Ints] = []
    visible: list[Ints] = []
    page_at = query_at = 0
    for item in work.items:
        pages.append(item.pages)
        if len(item.queries) <= _QUERIES:
            for begin in range(0, max(len(item.pages), 1), _PAGES):
                past = begin * page_size
                length = min(item.length - past, _PAGES * page_size)
                items.append((page_at + begin, length, query_at, len(item.queries)))
                queries.append(item.queries)
                visible.append(np.clip(item.visible - past, 0, length))
                query_at += len(item.queries)
        else:
            for begin in range(0, len(item.queries), _QUERIES):
                part = slice(begin, begin + _QUERIES)
                count = len(item.queries[part])
                items.append((page_at, item.length, query_at, count))
                queries.append(item.queries[part])
                visible.append(item.visible[part])
                query_at += count
        page_at += len(item.pages)
    query = np.concatenate(queries).astype(np.int32)
    counts = np.bincount(query, minlength=work.rows)
    return Flat(
        np.array(items, np.int32),
        np.concatenate(pages).astype(np.int32),
        query,
        np.concatenate(visible).astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.argsort(query, kind="stable").astype(np.int32),
    )
