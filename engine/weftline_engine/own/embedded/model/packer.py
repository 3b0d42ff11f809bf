"""Packs the matrices of a model for the C decoder: in bfloat16, or quantised.

A matrix may consist of pieces, such as queries, keys and values. Pieces of blocks stay quantised as
they are. X = rows of a matrix, Y = its columns.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.embedded.model.matrix import Blocks, Matrix, values_of
from weftline_kernels.cpu.blocks import SIZES, Bytes, WeightType
from weftline_kernels.cpu.layout import interleave, pack
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
    kept: list[Tensor | Bytes] = field(default_factory=list)
    packed: Counter[WeightType] = field(default_factory=Counter)  # bytes of panels by type

    def stacked(self, pieces: Sequence[Matrix]) -> CWeight:
        """A product with the rows of all pieces, one after the other."""
        blocks = self._all_blocks(pieces)
        if blocks is None:
            return self._plain(torch.cat([values_of(piece) for piece in pieces]))
        runs = [
            (kind, np.concatenate([piece.places() for piece in run]))
            for kind, run in groupby(blocks, lambda piece: piece.kind)
        ]
        if any(len(places) % self.panels.columns for _, places in runs[:-1]):
            # Parts begin with a panel.
            return self._plain(torch.cat([piece.values() for piece in blocks]))
        weight, first = CWeight(parts=len(runs)), 0
        for i, (kind, places) in enumerate(runs):
            packed = self._packed(kind, places, blocks[0].columns)
            weight.part[i] = CPart(kind, first, packed)
            first += -(-len(places) // self.panels.columns)
        return weight

    def gated(self, gate: Matrix, up: Matrix) -> CWeight:
        """A product whose panels hold a vector of rows of gate, and those of up that belong to
        them."""
        lanes = self.panels.columns // 2
        blocks = self._all_blocks((gate, up))
        if blocks is None or blocks[0].kind != blocks[1].kind:
            return self._plain(interleave(values_of(gate), values_of(up), lanes))
        rows = blocks[0].shape[0]
        places = np.zeros((-(-rows // lanes), 2, lanes), np.uint64)
        for side, piece in enumerate(blocks):
            padded = np.zeros(places.shape[0] * lanes, np.uint64)
            padded[:rows] = piece.places()
            places[:, side] = padded.reshape(-1, lanes)
        packed = self._packed(blocks[0].kind, places.reshape(-1), blocks[0].columns)
        return _one(CPart(blocks[0].kind, 0, packed))

    def keep(self, kept: Tensor | Bytes) -> int:
        """The address of what is kept as long as this packer."""
        if isinstance(kept, Tensor):
            kept = kept.contiguous()
        self.kept.append(kept)
        return kept.data_ptr() if isinstance(kept, Tensor) else int(kept.ctypes.data)

    def quantised(self, matrix: Matrix) -> Matrix:
        """A matrix in the type that was asked for. Blocks stay as they are, as does a matrix whose
        columns are no whole number of blocks."""
        if isinstance(matrix, Blocks) or self.quantise is None:
            return matrix
        columns = matrix.shape[1]
        if columns % SIZES[self.quantise][0]:
            return matrix
        rows = self.panels.quantise(self.quantise, matrix.float().contiguous().numpy())
        return Blocks(self.quantise, rows, columns)

    def _all_blocks(self, pieces: Sequence[Matrix]) -> list[Blocks] | None:
        """The pieces as blocks. None if one of them has none."""
        found = [self.quantised(piece) for piece in pieces]
        blocks = [piece for piece in found if isinstance(piece, Blocks)]
        return blocks if len(blocks) == len(found) else None

    def _packed(self, kind: WeightType, places: Addresses, columns: int) -> int:
        packed = self.panels.pack(kind, places, columns)
        if packed is None:
            raise ModelError(
                f"the weights hold {kind.name} scales that are not finite; fetch the model again"
            )
        self.packed[kind] += packed.nbytes
        return self.keep(packed)

    def _plain(self, weight_XY: Tensor) -> CWeight:
        """The weights in bfloat16."""
        packed = pack(weight_XY, self.panels.columns, self.panels.memory)
        self.packed[WeightType.BF16] += packed.nbytes
        return _one(CPart(WeightType.BF16, 0, self.keep(packed)))


def _one(part: CPart) -> CWeight:
    weight: Any = CWeight(parts=1)
    weight.part[0] = part
    return weight  # type: ignore[no-any-return]
