"""A matrix of a checkpoint: a tensor, or rows of quantised blocks in a mapped file.

X = rows of a matrix, Y = its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_kernels.cpu.blocks import Bytes, WeightType, widen
from weftline_kernels.cpu.panels import Addresses, addresses


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of blocks of one type, as bytes: row i of the matrix is row `order[i]` of `rows`."""

    kind: WeightType
    rows: Bytes
    columns: int
    order: npt.NDArray[Any] | None = None  # None: as they lie

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows) if self.order is None else len(self.order), self.columns

    def __getitem__(self, rows: slice) -> Blocks:
        order = np.arange(len(self.rows)) if self.order is None else self.order
        return Blocks(self.kind, self.rows, self.columns, order[rows])

    def places(self) -> Addresses:
        found = addresses(self.rows)
        return found if self.order is None else found[self.order]

    def values(self) -> Tensor:
        """The weights in float32."""
        rows = self.rows if self.order is None else self.rows[self.order]
        values = widen(self.kind, rows).reshape(self.shape)
        # Rows of F32 are the mapped file itself, which cannot be written.
        return torch.from_numpy(values if values.flags.writeable else values.copy())


Matrix = Tensor | Blocks


def values_of(matrix: Matrix) -> Tensor:
    return matrix.values() if isinstance(matrix, Blocks) else matrix
