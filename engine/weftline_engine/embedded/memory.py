"""Copies small arrays and blocks of the KV cache between host memory and device memory.

KV blocks are dimension 3 of a cache. On the CPU both memories are the same, so nothing is copied
between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Pairs = Sequence[tuple[int, int]]

# Bytes that are copied between host and device at a time. A context of 8,000 tokens of LLaMA-7B has
# 4 GB.
MOST_COPIED = 64 << 20


def put(values: npt.NDArray[Any] | Sequence[int], device: torch.device) -> Tensor:
    """`values` as a tensor on the device. Does not wait for the device's current work."""
    return torch.from_numpy(np.asarray(values)).to(device, non_blocking=True)


def copy_blocks(cache: Tensor, pairs: Pairs) -> None:
    """Copy block source to block target for each (source, target), all at once."""
    sources, targets = (put(side, cache.device) for side in zip(*pairs, strict=True))
    cache[:, :, :, targets] = cache.index_select(3, sources)


def wipe_blocks(cache: Tensor, blocks: Sequence[int]) -> None:
    """Fill these blocks with zeros."""
    cache.index_fill_(3, put(blocks, cache.device), 0)


def save_blocks(cache: Tensor, blocks: Sequence[int]) -> Tensor:
    """Copy these blocks into a new tensor in host memory. Its dimension 0 is the blocks.

    Raises RuntimeError or MemoryError if there is no memory for the copy.
    """
    first = cache.movedim(3, 0)
    if cache.device.type == "cpu":
        return first.index_select(0, put(blocks, cache.device))
    # Pinned memory lets the copy run beside the next steps. Later writes to the blocks, and copies
    # back, are on the same stream, so they run after this copy.
    saved = torch.empty((len(blocks), *first.shape[1:]), dtype=cache.dtype, pin_memory=True)
    for begin, past in _pieces(first, len(blocks)):
        piece = first.index_select(0, put(blocks[begin:past], cache.device))
        saved[begin:past].copy_(piece, non_blocking=True)
    return saved


def restore_blocks(cache: Tensor, saved: Tensor, pairs: Pairs) -> None:
    """Copy block source of `saved` to block target of the cache for each (source, target).

    Raises RuntimeError or MemoryError if there is no memory for the copy.
    """
    first = cache.movedim(3, 0)
    for begin, past in _pieces(first, len(saved)):
        here = [(source - begin, target) for source, target in pairs if begin <= source < past]
        if here:
            sources, targets = (put(side, cache.device) for side in zip(*here, strict=True))
            # The whole piece is copied on the stream, because the copy to the host may not have
            # ended yet.
            piece = saved[begin:past].to(cache.device, non_blocking=True)
            first.index_copy_(0, targets, piece.index_select(0, sources))


def _pieces(blocks_first: Tensor, count: int) -> Iterator[tuple[int, int]]:
    """The ranges of `count` blocks that are copied at a time. A copy takes device memory beside
    the KV cache, which has nearly all of it."""
    size = max(1, MOST_COPIED // max(1, blocks_first[0].numel() * blocks_first.element_size()))
    for begin in range(0, count, size):
        yield begin, min(count, begin + size)
