"""Where the C decoder expects numbers: weights in panels, and rows of activations.

X = rows of a weight, which are columns of the product. Y = its columns. M = rows of an MLP's
weight.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weftline_kernels.cpu.memory import WeightMemory


def stride(width: int) -> int:
    """The most floats from one row of activations to the next (stride_of in product.h)."""
    return -(-width // 32) * 32 + 16


def pack(weight_XY: Tensor, panel: int, memory: WeightMemory) -> Tensor:
    """Panels of `panel` rows of `weight_XY`, padded with zeros: (-1, Y / 2, panel, 2)."""
    rows, columns = weight_XY.shape
    padded = torch.zeros(-(-rows // panel) * panel, columns + columns % 2, dtype=torch.bfloat16)
    padded[:rows, :columns] = weight_XY
    # As 32-bit words of two columns each: transposing words is 4 times as fast.
    words = padded.view(torch.int32).view(-1, panel, padded.shape[1] // 2)
    laid = torch.from_numpy(memory.bytes(4 * words.numel()).view(np.int32))
    words = words.transpose(1, 2)
    return laid.view(words.shape).copy_(words)


def scratch_row(width: int) -> int:
    """Bytes of the scratch memory for a row of rounded activations (Rounded in rounded.h)."""
    return -(-width // 32) * 64


def rounded_rows(rows: int) -> int:
    """The rows for which the scratch memory must have room, at most (blocks_apart in rounded.h)."""
    return rows + 64


def interleave(gate_MY: Tensor, up_MY: Tensor, lanes: int) -> Tensor:
    """`lanes` rows of gate, those of up that belong to them, and so on, padded with zeros. They may
    be matrices or biases."""
    rows, *columns = gate_MY.shape
    blocks = -(-rows // lanes)
    both = gate_MY.new_zeros(2, blocks * lanes, *columns)
    both[0, :rows], both[1, :rows] = gate_MY, up_MY
    return both.view(2, blocks, lanes, *columns).transpose(0, 1).flatten(0, 2)
