"""Copies small arrays and blocks of the KV cache between host memory and device memory.

KV blocks are dimension 3 of a cache. On the CPU both memories are the same, so nothing is copied
between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Pairs = Sequence[tuple[int, int]]


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
    """Copy these blocks into a new tensor in host memory."""
    found = cache.index_select(3, put(blocks, cache.device))
    if found.device.type == "cpu":
        return found
    # Pinned memory lets the copy run beside the next steps. Later writes to the blocks, and copies
    # back, are on the same stream, so they run after this copy.
    saved = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    return saved.copy_(found, non_blocking=True)


def restore_blocks(cache: Tensor, saved: Tensor, pairs: Pairs) -> None:
    """Copy block source of `saved` to block target of the cache for each (source, target)."""
    sources, targets = zip(*pairs, strict=True)
    # All of `saved` is copied on the stream, because the copy to the host may not have ended yet.
    found = saved.to(cache.device, non_blocking=True).index_select(3, put(sources, cache.device))
    cache[:, :, :, put(targets, cache.device)] = found
