"""Where the C decoder expects numbers: rows of activations, and vectors of a gated MLP.

M = rows of an MLP's weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def stride(width: int) -> int:
    """The most floats from one row of activations to the next (stride_of in product.h)."""
    return -(-width // 32) * 32 + 16


def scratch_row(width: int) -> int:
    """Bytes of the scratch memory for a row of rounded activations (Rounded in rounded.h)."""
    return -(-width // 32) * 64


def rounded_rows(rows: int) -> int:
    """The rows for which the scratch memory must have room, at most (blocks_apart in rounded.h)."""
    return rows + 64


def interleave(gate_M: npt.NDArray[Any], up_M: npt.NDArray[Any], lanes: int) -> npt.NDArray[Any]:
    """`lanes` numbers of gate, those of up that belong to them, and so on, padded with zeros."""
    rows = len(gate_M)
    both = np.zeros((2, -(-rows // lanes) * lanes), gate_M.dtype)
    both[0, :rows], both[1, :rows] = gate_M, up_M
    return both.reshape(2, -1, lanes).swapaxes(0, 1).reshape(-1)
