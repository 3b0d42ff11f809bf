"""A matrix of a checkpoint: rows of weights of one type, as bytes in a mapped file or in memory.

X = rows of a matrix, Y = its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_kernels.cpu.blocks import QUANTISED, Bytes, Floats, WeightType, widen
from weftline_kernels.cpu.panels import Addresses, addresses


@dataclass(frozen=True, slots=True)
class Matrix:
    """Row i of the matrix is row `order[i]` of `rows`."""

    kind: WeightType
    rows: Bytes
    columns: int
    order: npt.NDArray[Any] | None = None  # None: as they lie

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows) if self.order is None else len(self.order), self.columns

    @property
    def quantised(self) -> bool:
        return self.kind in QUANTISED

    def __getitem__(self, rows: slice) -> Matrix:
        order = np.arange(len(self.rows)) if self.order is None else self.order
        return Matrix(self.kind, self.rows, self.columns, order[rows])

    def places(self) -> Addresses:
        found = addresses(self.rows)
        return found if self.order is None else found[self.order]

    def ordered(self) -> Bytes:
        """The rows as the matrix has them."""
        return self.rows if self.order is None else self.rows[self.order]

    def values(self) -> Floats:
        """The weights in float32."""
        return widen(self.kind, self.ordered()).reshape(self.shape)


def floats(values: Floats) -> Matrix:
    """The matrix of these values."""
    rows, columns = values.shape
    together = np.ascontiguousarray(values, np.float32)
    return Matrix(WeightType.F32, together.view(np.uint8).reshape(rows, -1), columns)


def alike(pieces: Sequence[Matrix]) -> list[Matrix]:
    """The pieces, or their values if some are quantised and others are not."""
    if len({piece.quantised for piece in pieces}) == 1:
        return list(pieces)
    return [floats(piece.values()) if piece.quantised else piece for piece in pieces]
