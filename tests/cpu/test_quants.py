"""Quantised weights in the C kernels: each type and variant gives the reference's bits."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.block_products import product, rounded
from tests.blocks import random_rows
from tests.decoder_parts import Parts
from weftline_kernels.cpu.blocks import (
    LARGE,
    QUANTISED,
    SIZES,
    WeightType,
    read,
    widen,
)
from weftline_kernels.cpu.panels import Panels, addresses

KINDS = sorted(QUANTISED)
# Columns: two large blocks, or a number that is no multiple of them.
INNER = {kind: 512 if SIZES[kind][0] == LARGE else 608 for kind in KINDS}


def the_product(built: Any, kind: WeightType, x: torch.Tensor, rows: Any, threads: int = 2) -> Any:
    """The product of inputs and rows of blocks, by the C kernels."""
    panels, parts = Panels(built, threads), Parts(built, threads)
    packed = panels.pack(kind, addresses(rows), x.shape[1])
    assert packed is not None
    found = parts.product(
        parts.inputs(x), torch.from_numpy(packed), x.shape[1], len(rows), kind=kind
    )
    return found.numpy()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_equal_those_of_the_gguf_package(kind: WeightType, built: Any) -> None:
    """Random bits in all fields, in numpy and in C."""
    rows = random_rows(kind, 9, 512)
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType(int(kind)))
    assert np.array_equal(widen(kind, rows), expected)
    assert np.array_equal(Panels(built, 1).widen(kind, rows, 512), expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_products_equal_the_reference(kind: WeightType, built: Any) -> None:
    """Every bit, for numbers of rows with whole tiles and without, and for a panel with gaps."""
    inner = INNER[kind]
    rows = random_rows(kind, 75, inner)
    x = torch.randn(130, inner, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    x[3], x[4, 40:] = 0, 0
    expected = product(rounded(x.numpy()), read(kind, rows))
    for count in (1, 2, 3, 4, 5, 7, 12, 13, 40, 130):
        found = the_product(built, kind, x[:count], rows)
        assert np.array_equal(found, expected[:count]), count


def test_the_largest_numbers_do_not_overflow(built: Any) -> None:
    """Every code is the one of the largest size, and every input is the largest, of both signs, as
    instructions that add in 16 bits could not hold."""
    x = torch.ones(3, 512)
    x[1], x[2, ::2] = -1, -1
    for kind in KINDS:
        for fill in (0xFF, 0x80, 0x00):
            rows = random_rows(kind, 33, 512)
            size = SIZES[kind][1]
            scales = rows.reshape(33, -1, size)[..., :4].copy()
            rows[:] = fill
            if kind != WeightType.Q6_K:
                rows.reshape(33, -1, size)[..., :4] = scales
            else:
                rows.reshape(33, -1, size)[..., 208:] = np.array([0.5], np.float16).view(np.uint8)
            expected = product(rounded(x.numpy()), read(kind, rows))
            assert np.isfinite(expected).all()
            assert np.array_equal(the_product(built, kind, x, rows), expected), (kind, fill)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_row_that_is_not_finite_spoils_no_other(kind: WeightType, built: Any) -> None:
    """Rows with NaN or infinity give NaN in every column, and other rows have their bits."""
    rows = random_rows(kind, 40, 512)
    x = torch.randn(9, 512, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    expected = the_product(built, kind, x, rows)
    x[1, 5], x[2, 500] = float("nan"), float("inf")
    found = the_product(built, kind, x, rows)
    assert np.isnan(found[1:3]).all()
    kept = [0, *range(3, 9)]
    assert np.array_equal(found[kept], expected[kept])


@pytest.mark.parametrize("kind", [WeightType.Q8_0, WeightType.Q4_0], ids=lambda kind: kind.name)
def test_quantised_weights_equal_those_of_the_gguf_package(kind: WeightType, built: Any) -> None:
    """Random weights of many sizes, a block of zeros, and one whose scale is a subnormal number."""
    values = np.random.default_rng(0).normal(0, 1, (64, 256)).astype(np.float32)
    values *= np.logspace(-6, 4, 64, dtype=np.float32)[:, None]
    values[0, :32], values[1, :32] = 0, values[1, :32] * 1e-4
    expected = gguf.quantize(values, gguf.GGMLQuantizationType(int(kind)))
    assert np.array_equal(Panels(built, 1).quantise(kind, values), expected)
