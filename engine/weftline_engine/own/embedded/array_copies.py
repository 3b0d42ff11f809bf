"""Copies small arrays and blocks of the KV cache between host memory and device memory.

KV blocks are dimension 3 of a cache. On the CPU both memories are the same, so nothing is copied
between them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    tensor = torch.from_numpy(np.asarray(values))
    if device.type == "cuda" and len(tensor):
        tensor = tensor.pin_memory()  # the host may wait for a copy from other memory
    return tensor.to(device, non_blocking=True)


def mark(device: torch.device) -> Callable[[], object]:
    """A function that waits until the device has done all that it was told before this call."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


class Readback:
    """Tensors of a device on their way to host memory.

    `values` is the one place in which the host waits for a step.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._here = list(tensors)
        if device.type != "cpu":
            self._here = [
                torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors
            ]
            for here, one in zip(self._here, tensors, strict=True):
                here.copy_(one, non_blocking=True)
        self._wait = mark(device)

    def values(self) -> list[npt.NDArray[Any]]:
        """The values, after the device has done what it was told before they were fetched."""
        self._wait()
        return [one.numpy() for one in self._here]


def copy_blocks(cache: Tensor, pairs: Pairs) -> None:
    """Copy block source to block target for each (source, target), all at once."""
    sources, targets = (put(side, cache.device) for side in zip(*pairs, strict=True))
    cache[:, :, :, targets] = cache.index_select(3, sources)


def wipe_blocks(cache: Tensor, blocks: Sequence[int], place: int | None = None) -> None:
    """Fill these blocks with zeros, or the place of one token in each, which is in dimension 4."""
    part = cache if place is None else cache.select(4, place)
    part.index_fill_(3, put(blocks, cache.device), 0)


def release_blocks(cache: Tensor, layers: Iterable[int], blocks: Sequence[int]) -> None:
    """Give back the memory of these blocks in some layers (dimension 0). It reads as zeros then."""
    step, width = (cache.stride(3) * cache.element_size(), cache.shape[3])
    runs = _runs(sorted(blocks))
    for layer in layers:
        part = cache[layer].flatten(0, 1)
        for row in range(len(part)):
            start = part[row].data_ptr()
            for first, past in runs:
                assert past <= width, "a block of the pool"
                begin = (
                    -(-(start + first * step) // mmap.ALLOCATIONGRANULARITY)
                    * mmap.ALLOCATIONGRANULARITY
                )
                end = (
                    (start + past * step) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
                )
                if begin < end and _advise(begin, end - begin, mmap.MADV_DONTNEED):
                    raise OSError(ctypes.get_errno(), "the memory of a window was not given back")


def use_small_units(cache: Tensor) -> None:
    """Let the system take the memory of the cache in small units, which can be given back."""
    begin = -(-cache.data_ptr() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    size = cache.data_ptr() + cache.numel() * cache.element_size() - begin
    if size > 0:  # a system without large units refuses, and needs nothing
        _advise(begin, size, mmap.MADV_NOHUGEPAGE)


def _advise(address: int, size: int, advice: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).madvise
    return int(call(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice)))


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of adjacent numbers, (first, past the last)."""
    found: list[tuple[int, int]] = []
    for block in blocks:
        if found and found[-1][1] == block:
            found[-1] = found[-1][0], block + 1
        else:
            found.append((block, block + 1))
    return found


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
