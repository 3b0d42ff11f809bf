"""Gives the memory of KV blocks back to the system, for layers whose window has left them.

KV blocks are dimension 3 of a cache, which lies in host memory.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

_PAGE = mmap.ALLOCATIONGRANULARITY


def release_blocks(cache: npt.NDArray[Any], layers: Iterable[int], blocks: Sequence[int]) -> None:
    """Give back the memory of these blocks in some layers (dimension 0). It reads as zeros then."""
    step, width = cache.strides[3], cache.shape[3]
    runs = _runs(sorted(blocks))
    for layer in layers:
        for side in cache[layer]:
            for row in side:
                start = row.ctypes.data
                for first, past in runs:
                    assert past <= width, "a block of the pool"
                    begin = -(-(start + first * step) // _PAGE) * _PAGE
                    end = (start + past * step) // _PAGE * _PAGE
                    if begin < end and _advise(begin, end - begin, mmap.MADV_DONTNEED):
                        why = "the memory of a window was not given back"
                        raise OSError(ctypes.get_errno(), why)


def use_small_units(cache: npt.NDArray[Any]) -> None:
    """Let the system take the memory of the cache in small units, which can be given back."""
    begin = -(-cache.ctypes.data // _PAGE) * _PAGE
    size = cache.ctypes.data + cache.nbytes - begin
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
