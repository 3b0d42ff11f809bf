"""Checks every kernel against its reference on a device, for `make gpu` and tests/gpu."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from weftline_kernels.attention import attention_reference
from weftline_kernels.attention_triton import TritonAttention
from weftline_kernels.kv_store import NO_SLOT, kv_store_reference, kv_store_triton
from weftline_kernels.rms_norm import (
    add_rms_norm_reference,
    add_rms_norm_triton,
    rms_norm_reference,
    rms_norm_triton,
)
from weftline_kernels.rope import rope_tables
from weftline_kernels.rope_store import rope_store_reference, rope_store_triton
from weftline_kernels.silu_mul import silu_mul_reference, silu_mul_triton
from weftline_kernels.work_list import SequenceRows, build

BLOCK = 16
# The largest difference allowed, relative to the largest value. It covers the rounding of the
# result, and in attention the rounding of the weights before they are multiplied with the values.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

Check = Callable[[torch.device, torch.dtype], float]


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected value; NaN stays NaN."""
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))


def rms_norm_check(device: torch.device, dtype: torch.dtype) -> float:
    x, weight = _random(device, dtype, 33, 4096), _random(device, dtype, 4096)
    return difference(rms_norm_triton(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


def add_rms_norm_check(device: torch.device, dtype: torch.dtype) -> float:
    x, more = _random(device, dtype, 2, 33, 4096)
    weight = _random(device, dtype, 4096)
    pairs = zip(
        add_rms_norm_triton(x, more, weight, 1e-5),
        add_rms_norm_reference(x, more, weight, 1e-5),
        strict=True,
    )
    return max(difference(found, expected) for found, expected in pairs)


def rope_store_check(device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference of queries, keys and values: 32 and 8 heads of 128, with norms."""
    qkv = _random(device, dtype, 50, 48, 128)
    positions = torch.arange(50, device=device) * 401
    frequencies = 1 / 10000 ** (torch.arange(64, device=device) / 64)
    tables = rope_tables(positions, frequencies, dtype)
    norms = (_random(device, dtype, 128), _random(device, dtype, 128), 1e-5)
    slots = torch.randperm(64 * BLOCK, device=device)[:50]
    slots[7] = NO_SLOT
    found, expected = (
        torch.zeros(2, 8, 64, BLOCK, 128, device=device, dtype=dtype) for _ in range(2)
    )
    q = rope_store_triton(qkv, *tables, norms, found[0], found[1], slots)
    q_expected = rope_store_reference(qkv, *tables, norms, expected[0], expected[1], slots)
    return max(difference(q, q_expected), difference(found, expected))


def silu_mul_check(device: torch.device, dtype: torch.dtype) -> float:
    x = _random(device, dtype, 33, 2 * 11008)
    return difference(silu_mul_triton(x), silu_mul_reference(x))


def kv_store_check(device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference between the stored keys and the reference's, with an unused slot."""
    x = _random(device, dtype, 50, 24, 128)[:, 8:16]
    slots = torch.randperm(64 * BLOCK, device=device)[:50]
    slots[7] = NO_SLOT
    found, expected = (torch.zeros(8, 64, BLOCK, 128, device=device, dtype=dtype) for _ in range(2))
    kv_store_reference(expected, x, slots)
    kv_store_triton(found, x, slots)
    return difference(found, expected)


def attention_check(kv_heads: int, group: int, parts: list[SequenceRows]) -> Check:
    """A check of attention that shares every common block, in splits of 64 tokens."""

    def check(device: torch.device, dtype: torch.dtype) -> float:
        work = build(parts, BLOCK, min_blocks_saved=1)
        blocks = 1 + max(max(part.blocks) for part in parts)
        q = _random(device, dtype, work.rows, kv_heads * group, 128)
        cache = _random(device, dtype, 2, kv_heads, blocks, BLOCK, 128)
        found = TritonAttention(work, 128**-0.5, split=64)(q, cache[0], cache[1])
        exact = (x.double().cpu() for x in (q, cache[0], cache[1]))
        return difference(found, attention_reference(work, 128**-0.5)(*exact))

    return check


def tree(levels: int) -> list[SequenceRows]:
    """A binary tree: each branch has the whole blocks of 37 tokens, each leaf 5 tokens
    of its own.
    """
    tables: list[list[int]] = [[]]
    used = 0
    for _ in range(levels):
        grown = []
        for table in tables:
            for _ in range(2):
                grown.append([*table, *range(used, used + 3)])
                used += 3
        tables = grown
    return [SequenceRows([*table, used + i], i, 1, len(table) * BLOCK + i % 7)
            for i, table in enumerate(tables)]  # fmt: skip


def chunk_behind_prefix() -> list[SequenceRows]:
    """A prompt of 150 tokens after 10 shared blocks, and three decoding sequences that
    share them.
    """
    prefix = list(range(10))
    decode = [SequenceRows([*prefix, 30 + i], i, 1, 10 * BLOCK + 3 * i) for i in range(3)]
    return [*decode, SequenceRows([*prefix, *range(10, 20)], 3, 150, 10 * BLOCK)]


CHECKS: dict[str, Check] = {
    "rms_norm": rms_norm_check,
    "add_rms_norm": add_rms_norm_check,
    "rope_store": rope_store_check,
    "silu_mul": silu_mul_check,
    "kv_store": kv_store_check,
    **{
        f"attention {name}, {kv_heads} KV heads of {group}": attention_check(kv_heads, group, parts)
        for kv_heads, group in ((4, 1), (2, 3), (2, 4))
        for name, parts in (
            ("tree of 4 levels", tree(4)),
            ("chunk behind a prefix", chunk_behind_prefix()),
        )
    },
}


def run(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> Iterator[dict[str, object]]:
    """A row for each kernel and dtype; `ok` is False if the result differs or is NaN."""
    for name, check in CHECKS.items():
        for dtype in dtypes:
            torch.manual_seed(0)
            found = check(device, dtype)
            ok = found <= TOLERANCE[dtype]
            yield {"kernel": name, "dtype": str(dtype)[6:], "difference": found, "ok": ok}


def _random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)
