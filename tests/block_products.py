"""The product of quantised weights in numpy: the reference of the C kernels (quants.h).

X = rows of a weight, Y = its columns, B = small blocks of a row, T = rows of inputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weftline_kernels.cpu.blocks import SMALL, Codes, Floats, Wholes


class Rounded(NamedTuple):
    """Inputs in blocks of 32 whole numbers of -127 to 127, each block with a scale."""

    numbers_TB32: Wholes
    scales_TB: Floats


def rounded(x_TY: Floats) -> Rounded:
    """Inputs as the products of quantised weights take them."""
    blocks = x_TY.reshape(len(x_TY), -1, SMALL)
    most = np.abs(blocks).max(axis=2)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)
    # The product is rounded to a whole number once, so it is computed in float64.
    numbers = np.rint(blocks.astype(np.float64) * inverse[..., None].astype(np.float64))
    return Rounded(numbers.astype(np.int64), most / np.float32(127))


def product(x: Rounded, weights: Codes) -> Floats:
    """The product (T, X) to the bit, as every variant of the C kernels computes it."""
    codes_XB32, scales_XBP, least_XB = weights
    total = np.zeros((len(x.numbers_TB32), len(codes_XB32)), np.float32)
    wide = SMALL // scales_XBP.shape[2]
    for b in range(codes_XB32.shape[1]):
        numbers, scale_T1 = x.numbers_TB32[:, b], x.scales_TB[:, b, None]
        for p in range(scales_XBP.shape[2]):
            part = slice(p * wide, (p + 1) * wide)
            sums = (numbers[:, part] @ codes_XB32[:, b, part].T).astype(np.float32)
            total = fused(sums, scales_XBP[:, b, p] * scale_T1, total)
        if least_XB is not None:
            sum_T1 = scale_T1 * numbers.sum(axis=1, keepdims=True).astype(np.float32)
            total = fused(-least_XB[:, b], sum_T1, total)
    return total


def fused(a: Any, b: Any, c: Any) -> Floats:
    """a * b + c in float32, rounded once.

    The product is exact in float64. The sum there is rounded to odd: if it is not exact, its last
    bit is set. So the second rounding, to float32, is that of the exact sum.
    """
    product_, c = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product_ + c
    back = total - product_
    error = (product_ - (total - back)) + (c - back)
    bits = total.view(np.int64)
    away = (error > 0) == (total > 0)  # the exact sum has a larger size than the rounded one
    odd = np.where((error != 0) & (bits & 1 == 0), np.where(away, bits + 1, bits - 1), bits)
    found: Floats = odd.view(np.float64).astype(np.float32)
    return found
