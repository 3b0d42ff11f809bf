"""Turns a work list into flat arrays for the C decoder, cut so that all cores have work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weftline_kernels.work_list import Ints, WorkList

Int32s = npt.NDArray[np.int32]

# KV blocks of a task for a few queries. Without the cut, a single sequence has one task per KV head
# (3 in SmolLM2, for 2 threads), and a thread is idle while the last one runs. A cut costs one more
# partial result: 64 numbers per head.
_BLOCKS = 16
# Fewest and most queries of a chunk in one task. With 16 or more queries a context is read only
# once. With 64 (192 rows of SmolLM2), attention to 2,560 tokens is 1.2 times as fast as with 16.
_QUERIES = 16
_MOST_QUERIES = 128
# Tasks that each thread should get, so that no core is idle for long at the end of a layer.
_TASKS = 8


def queries_of_task(tokens: int, kv_heads: int, threads: int) -> int:
    """Return the queries per task for a step of `tokens`."""
    queries = _MOST_QUERIES
    while queries > _QUERIES and tokens * kv_heads < _TASKS * threads * queries:
        queries //= 2
    return queries


class Flat(NamedTuple):
    """The arrays of a step.

    Columns of `item`: block_at, length, query_at, queries and start, with offsets into `block` and
    `query`. The partial results of row r are in the query slots part[part_at[r] : part_at[r + 1]].
    """

    item: Int32s
    block: Int32s
    query: Int32s
    visible: Int32s
    part_at: Int32s
    part: Int32s


def flatten(work: WorkList, block_size: int = 16, queries: int = _QUERIES) -> Flat:
    """Return the work list as arrays, cut into parts. The longest parts come first.

    An item of many queries is cut into parts of `queries` each. A long item of few queries is cut
    into parts of _BLOCKS blocks. I = items, P = their parts, S = query slots of all parts.
    """
    blocks_I = np.array([len(item.blocks) for item in work.items])
    length_I = np.array([item.length for item in work.items])
    queries_I = np.array([len(item.queries) for item in work.items])
    few_I = queries_I <= _QUERIES
    item_P, index_P = spread(
        np.where(few_I, -(-np.maximum(blocks_I, 1) // _BLOCKS), -(-queries_I // queries))
    )
    few_P = few_I[item_P]
    block_P, first_P = np.where(few_P, index_P * _BLOCKS, 0), np.where(few_P, 0, index_P * queries)
    past_P = block_P * block_size
    left_P = length_I[item_P] - past_P
    length_P = np.where(few_P, np.minimum(left_P, _BLOCKS * block_size), left_P)
    queries_P = np.minimum(queries_I[item_P] - first_P, queries)
    part_S, index_S = spread(queries_P)
    from_S = (_before(queries_I)[item_P] + first_P)[part_S] + index_S
    query = np.concatenate([item.queries for item in work.items])[from_S].astype(np.int32)
    seen_S = np.concatenate([item.visible for item in work.items])[from_S] - past_P[part_S]
    counts = np.bincount(query, minlength=work.rows)
    start_P = np.array([item.start for item in work.items])[item_P] + past_P
    first_block_P = _before(blocks_I)[item_P] + block_P
    columns = (first_block_P, length_P, _before(queries_P), queries_P, start_P)
    order_P = np.argsort(-length_P * queries_P, kind="stable")
    return Flat(
        np.stack(columns, axis=1).astype(np.int32)[order_P],
        np.concatenate([item.blocks for item in work.items]).astype(np.int32),
        query,
        np.minimum(np.maximum(seen_S, 0), length_P[part_S]).astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.argsort(query, kind="stable").astype(np.int32),
    )


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Repeat each i `counts[i]` times. Return the i and, for each, its number among equal ones."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - _before(counts)[which]


def _before(counts: Ints) -> Ints:
    """Return, for each count, the sum of those before it."""
    return np.asarray(np.cumsum(counts) - counts)
