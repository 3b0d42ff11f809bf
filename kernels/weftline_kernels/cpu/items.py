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
# Queries of a chunk in one task, at least: 16 are the fewest for which a context is read once. With
# 64 of SmolLM2's, 192 rows, a context of 2,560 tokens is attended 1.2 times as fast. The most such
# that each thread gets so many tasks, so that no core is idle for long at the end of a layer.
_QUERIES = 16
_MOST_QUERIES = 128
_TASKS = 8


def queries_of_task(tokens: int, kv_heads: int, threads: int) -> int:
    """How many queries of a step of `tokens` one task should take."""
    queries = _MOST_QUERIES
    while queries > _QUERIES and tokens * kv_heads < _TASKS * threads * queries:
        queries //= 2
    return queries


class Flat(NamedTuple):
    """Items (page_at, length, query_at, queries), what they point to, and for each row of the step
    the query slots that hold its partial results: part[part_at[r] : part_at[r + 1]]."""

    item: Int32s
    page: Int32s
    query: Int32s
    visible: Int32s
    part_at: Int32s
    part: Int32s


def flatten(work: WorkList, page_size: int = 16, queries: int = _QUERIES) -> Flat:
    """Cut items of many queries into parts of so many `queries`, and long ones of few by page; the
    longest come first.

    I = items, P = parts of them, Q = queries of all items, S = query slots of all parts.
    """
    pages_I = np.array([len(item.pages) for item in work.items])
    length_I = np.array([item.length for item in work.items])
    queries_I = np.array([len(item.queries) for item in work.items])
    few_I = queries_I <= _QUERIES
    item_P, index_P = spread(
        np.where(few_I, -(-np.maximum(pages_I, 1) // _PAGES), -(-queries_I // queries))
    )
    few_P = few_I[item_P]
    page_P, first_P = np.where(few_P, index_P * _PAGES, 0), np.where(few_P, 0, index_P * queries)
    past_P = page_P * page_size
    left_P = length_I[item_P] - past_P
    length_P = np.where(few_P, np.minimum(left_P, _PAGES * page_size), left_P)
    queries_P = np.minimum(queries_I[item_P] - first_P, queries)
    part_S, index_S = spread(queries_P)
    from_S = (_before(queries_I)[item_P] + first_P)[part_S] + index_S
    query = np.concatenate([item.queries for item in work.items])[from_S].astype(np.int32)
    seen_S = np.concatenate([item.visible for item in work.items])[from_S] - past_P[part_S]
    counts = np.bincount(query, minlength=work.rows)
    columns = (_before(pages_I)[item_P] + page_P, length_P, _before(queries_P), queries_P)
    order_P = np.argsort(-length_P * queries_P, kind="stable")
    return Flat(
        np.stack(columns, axis=1).astype(np.int32)[order_P],
        np.concatenate([item.pages for item in work.items]).astype(np.int32),
        query,
        np.minimum(np.maximum(seen_S, 0), length_P[part_S]).astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.argsort(query, kind="stable").astype(np.int32),
    )


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """(which, how many before of the same) for `counts[i]` times each i."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - _before(counts)[which]


def _before(counts: Ints) -> Ints:
    """The sum of all counts before each."""
    return np.asarray(np.cumsum(counts) - counts)
