"""Blocks of quantised weights in numpy: the reference of the C kernels (blocks.h, quants.h).

A GGUF file stores a row of weights as blocks. A small block has 32 weights. A large one has 256, in
eight small blocks whose scales have a scale in common. X = rows of a weight, Y = its columns,
B = small blocks of a row, T = rows of inputs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Wholes = npt.NDArray[np.int64]

SMALL, LARGE = 32, 256


class WeightType(IntEnum):
    """The types of weights that the C decoder takes, by their numbers in a GGUF file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


# Weights of a block, and its bytes.
SIZES = {
    WeightType.F32: (1, 4),
    WeightType.F16: (1, 2),
    WeightType.BF16: (1, 2),
    WeightType.Q4_0: (32, 18),
    WeightType.Q4_1: (32, 20),
    WeightType.Q5_0: (32, 22),
    WeightType.Q5_1: (32, 24),
    WeightType.Q8_0: (32, 34),
    WeightType.Q4_K: (256, 144),
    WeightType.Q5_K: (256, 176),
    WeightType.Q6_K: (256, 210),
}
QUANTISED = frozenset(kind for kind, (count, _) in SIZES.items() if count > 1)


class Codes(NamedTuple):
    """Weights of rows: a weight is scale * code - least.

    There are P scales for a small block: two in Q6_K, one for each half, and one in other types.
    """

    codes_XB32: Wholes
    scales_XBP: Floats
    least_XB: Floats | None = None


def row_bytes(kind: WeightType, columns: int) -> int:
    """The bytes of a row. Raises ValueError if no whole number of blocks has so many weights."""
    weights, size = SIZES[kind]
    if columns % weights:
        raise ValueError(f"{columns} columns are no whole number of {kind.name} blocks")
    return columns // weights * size


def read(kind: WeightType, rows_XY: Bytes) -> Codes:
    """The codes and scales of rows of blocks, given as bytes."""
    size = SIZES[kind][1]
    blocks = rows_XY.reshape(len(rows_XY), -1, size)
    match kind:
        case WeightType.Q4_0:
            return Codes(_nibbles(blocks[..., 2:], 16) - 8, _float16s(blocks[..., :2]))
        case WeightType.Q4_1:
            scales_XBP, least_XB1 = _float16s(blocks[..., :2]), -_float16s(blocks[..., 2:4])
            return Codes(_nibbles(blocks[..., 4:], 16), scales_XBP, least_XB1[..., 0])
        case WeightType.Q5_0:
            codes = _nibbles(blocks[..., 6:], 16) | _fifth_bits(blocks[..., 2:6])
            return Codes(codes - 16, _float16s(blocks[..., :2]))
        case WeightType.Q5_1:
            scales_XBP, least_XB1 = _float16s(blocks[..., :2]), -_float16s(blocks[..., 2:4])
            codes = _nibbles(blocks[..., 8:], 16) | _fifth_bits(blocks[..., 4:8])
            return Codes(codes, scales_XBP, least_XB1[..., 0])
        case WeightType.Q8_0:
            codes = blocks[..., 2:].view(np.int8).astype(np.int64)
            return Codes(codes, _float16s(blocks[..., :2]))
        case WeightType.Q4_K:
            return _with_least(_nibbles(blocks[..., 16:], 32), blocks)
        case WeightType.Q5_K:
            high = blocks[..., 16:48][..., None, :] >> np.arange(8)[:, None] & 1
            low = _nibbles(blocks[..., 48:], 32).reshape(high.shape)
            return _with_least(low | high.astype(np.int64) << 4, blocks)
        case WeightType.Q6_K:
            return _halves(blocks)
    raise AssertionError(f"{kind.name} has no blocks")


def widen(kind: WeightType, rows_XY: Bytes) -> Floats:
    """The values of rows of weights, given as bytes."""
    match kind:
        case WeightType.F32:
            return rows_XY.view(np.float32)
        case WeightType.F16:
            return rows_XY.view(np.float16).astype(np.float32)
        case WeightType.BF16:
            return (rows_XY.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    codes_XB32, scales_XBP, least_XB = read(kind, rows_XY)
    each = np.repeat(scales_XBP, SMALL // scales_XBP.shape[2], axis=2)
    values = codes_XB32.astype(np.float32) * each
    if least_XB is not None:
        values -= least_XB[..., None]
    return values.reshape(len(rows_XY), -1)


def narrow(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of finite numbers in bfloat16, rounded to nearest with ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd >> np.uint32(16)).astype(np.uint16)


def _nibbles(packed: Bytes, together: int) -> Wholes:
    """The low halves of `together` bytes, their high ones, and so on with the next bytes."""
    groups = packed.reshape(*packed.shape[:-1], -1, 1, together)
    both = groups >> np.array([[0], [4]], np.uint8) & 15
    return both.reshape(*packed.shape[:-1], -1).astype(np.int64)


def _fifth_bits(packed: Bytes) -> Wholes:
    """The bits of bytes, the lowest first, at the place of a fifth bit."""
    return np.unpackbits(packed, axis=-1, bitorder="little").astype(np.int64) << 4


def _float16s(pairs: Bytes) -> Floats:
    return np.ascontiguousarray(pairs).view(np.float16).astype(np.float32)


def _with_least(codes: Wholes, blocks: Bytes) -> Codes:
    """Q4_K and Q5_K, which pack eight scales and eight leasts of 6 bits into 12 bytes."""
    rows = len(blocks)
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=2)
    leasts = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=2)
    scales_XB = (_float16s(blocks[..., :2]) * scales).reshape(rows, -1)
    least_XB = (_float16s(blocks[..., 2:4]) * leasts).reshape(rows, -1)
    codes_XB32 = codes.reshape(rows, -1, SMALL)
    return Codes(codes_XB32, scales_XB[..., None], least_XB)


def _halves(blocks: Bytes) -> Codes:
    """Q6_K: 4 bits, then 2 bits, then 16 scales with sign, then their scale."""
    rows = len(blocks)
    low = _nibbles(blocks[..., :128], 64).reshape(rows, -1, 8, SMALL)
    groups = blocks[..., 128:192].reshape(rows, -1, 2, 1, SMALL)
    high = (groups >> np.array([[0], [2], [4], [6]], np.uint8) & 3).reshape(low.shape)
    small = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    scales = (_float16s(blocks[..., 208:]) * small).astype(np.float32)
    codes = (low | high.astype(np.int64) << 4).reshape(rows, -1, SMALL)
    return Codes(codes - 32, scales.reshape(*codes.shape[:2], 2))
