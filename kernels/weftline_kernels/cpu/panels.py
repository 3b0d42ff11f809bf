"""Packs rows of weights into the panels of one build of the C decoder."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from weftline_kernels.cpu.blocks import SIZES, Bytes, Floats, WeightType
from weftline_kernels.cpu.memory import WeightMemory

Addresses = npt.NDArray[np.uint64]


class Panels:
    """The functions of a library that quantise, pack and widen weights, on `threads` threads."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.threads, self.memory = threads, WeightMemory()
        self.columns = int(library.weftline_panel())
        self._bytes = library.weftline_panel_bytes
        self._bytes.argtypes, self._bytes.restype = [c_int32, c_int64], c_int64
        self._pack = library.weftline_pack
        self._pack.argtypes = [c_int32, c_void_p, c_int64, c_int64, c_void_p, c_int32]
        self._pack.restype = c_int32
        self._widen = library.weftline_widen
        self._widen.argtypes = [c_int32, c_void_p, c_int64, c_int64, c_void_p, c_int32]
        self._quantise = library.weftline_quantise
        self._quantise.argtypes = [c_int32, c_void_p, c_int64, c_void_p, c_int32]

    def bytes_of(self, kind: WeightType, rows: int, inner: int) -> int:
        """The bytes of so many rows of `inner` weights in panels. 0 if no whole number of blocks
        has so many."""
        return -(-rows // self.columns) * int(self._bytes(kind, inner))

    def pack(self, kind: WeightType, rows: Addresses, inner: int) -> Bytes | None:
        """Panels of the rows at these addresses; 0 means a row of zeros. None if a scale is not
        finite."""
        padded = np.zeros(-(-len(rows) // self.columns) * self.columns, np.uint64)
        padded[: len(rows)] = rows
        packed = self.memory.bytes(self.bytes_of(kind, len(rows), inner))
        places = (padded.ctypes.data, len(padded), inner, packed.ctypes.data)
        return packed if self._pack(kind, *places, self.threads) else None

    def widen(self, kind: WeightType, rows: Bytes, inner: int) -> Floats:
        """The values of rows of weights of any type, given as bytes (X, row_bytes)."""
        values = np.empty((len(rows), inner), np.float32)
        places = (rows.ctypes.data, len(rows), inner, values.ctypes.data)
        self._widen(kind, *places, self.threads)
        return values

    def quantise(self, kind: WeightType, values: Floats) -> Bytes:
        """Rows of Q8_0 or Q4_0 blocks, for rows of a whole number of blocks."""
        rows, columns = values.shape
        weights, size = SIZES[kind]
        blocks = np.empty((rows, columns // weights * size), np.uint8)
        self._quantise(kind, values.ctypes.data, values.size, blocks.ctypes.data, self.threads)
        return blocks


def addresses(rows: Bytes) -> Addresses:
    """The addresses of rows that lie one behind the other."""
    assert rows.flags.c_contiguous and rows.dtype == np.uint8
    return np.uint64(rows.ctypes.data) + np.arange(len(rows), dtype=np.uint64) * np.uint64(
        rows.shape[1]
    )
