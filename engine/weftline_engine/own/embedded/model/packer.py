"""Packs the matrices of a model for the C decoder: in bfloat16, or quantised.

A matrix may consist of pieces, such as queries, keys and values. Quantised pieces stay as they are.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.embedded.model.matrix import Matrix, alike, floats
from weftline_kernels.cpu.blocks import QUANTISED, SIZES, WeightType
from weftline_kernels.cpu.panels import Addresses, Panels

MOST_PARTS = 3  # in product.h


class CPart(ctypes.Structure):
    """Panels of one type (Part in product.h)."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("panels", ctypes.c_void_p),
    )


class CWeight(ctypes.Structure):
    """A matrix in panels (Weight in product.h)."""

    _fields_ = (("parts", ctypes.c_int32), ("part", CPart * MOST_PARTS))


@dataclass(slots=True)
class Packer:
    """Packs for one build of the decoder, and keeps what it packed.

    `quantise` is the type to which matrices are quantised where it divides their columns.
    """

    panels: Panels
    quantise: WeightType | None = None
    kept: list[npt.NDArray[Any]] = field(default_factory=list)
    packed: Counter[WeightType] = field(default_factory=Counter)  # bytes of panels by type

    def stacked(self, pieces: Sequence[Matrix]) -> CWeight:
        """A product with the rows of all pieces, one after the other."""
        found = alike([self.quantised(piece) for piece in pieces])
        runs = [list(run) for _, run in groupby(found, lambda piece: piece.kind)]
        rows = [sum(piece.shape[0] for piece in run) for run in runs]
        if any(count % self.panels.columns for count in rows[:-1]):
            # Parts begin with a panel.
            runs = [[floats(np.concatenate([piece.values() for piece in found]))]]
        weight, first = CWeight(parts=len(runs)), 0
        for i, run in enumerate(runs):
            places = np.concatenate([piece.places() for piece in run])
            weight.part[i] = self._part(run[0].kind, first, places, run[0].columns)
            first += -(-len(places) // self.panels.columns)
        return weight

    def gated(self, gate: Matrix, up: Matrix) -> CWeight:
        """A product whose panels hold a vector of rows of gate, and those of up that belong to
        them."""
        lanes, pair = self.panels.columns // 2, [self.quantised(gate), self.quantised(up)]
        if pair[0].kind != pair[1].kind:
            pair = [floats(piece.values()) for piece in pair]
        rows, columns = pair[0].shape
        places = np.zeros((-(-rows // lanes), 2, lanes), np.uint64)
        for side, piece in enumerate(pair):
            padded = np.zeros(places.shape[0] * lanes, np.uint64)
            padded[:rows] = piece.places()
            places[:, side] = padded.reshape(-1, lanes)
        weight: CWeight = CWeight(parts=1)
        weight.part[0] = self._part(pair[0].kind, 0, places.reshape(-1), columns)
        return weight

    def keep(self, kept: npt.NDArray[Any]) -> int:
        """The address of what is kept as long as this packer."""
        kept = np.ascontiguousarray(kept)
        self.kept.append(kept)
        return int(kept.ctypes.data)

    def quantised(self, matrix: Matrix) -> Matrix:
        """A matrix in the type that was asked for. Quantised ones stay as they are, as does a
        matrix whose columns are no whole number of blocks."""
        if matrix.quantised or self.quantise is None:
            return matrix
        if matrix.columns % SIZES[self.quantise][0]:
            return matrix
        values = np.ascontiguousarray(matrix.values())
        return Matrix(self.quantise, self.panels.quantise(self.quantise, values), matrix.columns)

    def _part(self, kind: WeightType, first: int, places: Addresses, columns: int) -> CPart:
        """Panels of rows of one type; `first` is the number of the first panel."""
        packed = self.panels.pack(kind, places, columns)
        if packed is None:
            raise ModelError(
                f"the weights hold {kind.name} scales that are not finite; fetch the model again"
            )
        inside = kind if kind in QUANTISED else WeightType.BF16
        self.packed[inside] += packed.nbytes
        return CPart(inside, first, self.keep(packed))
