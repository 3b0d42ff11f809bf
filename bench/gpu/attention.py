"""Times tree decode of one layer, against the bytes that it must read and against other attention.

The timed calls read different caches, as the layers of a model do. Together these are larger than
the device's L2 cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_kernels.attention_triton import TritonAttention
from weftline_kernels.work_list import SequenceRows, build

BLOCK = 16
LAYERS = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The attention shape of a model."""

    name: str
    heads: int
    kv_heads: int
    width: int


SHAPES = (Shape("LLaMA-7B", 32, 32, 128), Shape("Llama-3-8B", 32, 8, 128))


def shared_parts(batch: int, prefix: int, suffixes: Sequence[int]) -> list[SequenceRows]:
    """A decode step of `batch` sequences with `prefix` common tokens, each with its own suffix."""
    common, used = list(range(prefix // BLOCK)), prefix // BLOCK
    parts = []
    for i, suffix in zip(range(batch), suffixes, strict=True):
        length = prefix % BLOCK + suffix
        own = -(-length // BLOCK)
        parts.append(SequenceRows([*common, *range(used, used + own)], i, 1, prefix + suffix - 1))
        used += own
    return parts


def seconds(run: Callable[[int], object], layers: int, device: torch.device) -> float:
    """The median seconds of a call; `run(i)` uses cache i.

    On CUDA the calls are a captured graph.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        run(0)
        return time.perf_counter() - start
    for i in range(layers):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(layers):
            run(i)
    times = []
    for _ in range(25):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / layers)
    return sorted(times)[len(times) // 2]


def bandwidth(device: torch.device) -> float:
    """Bytes a second that the device moves: the roof for the percentages. It is the better of a
    copy, which reads and writes, and of a sum, which only reads."""
    count = 2**30 if device.type == "cuda" else 2**20
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    began = time.monotonic()
    while device.type == "cuda" and time.monotonic() - began < 0.5:  # the clocks rise first
        target.copy_(source)
        torch.cuda.synchronize()
    copied = 8 * count / seconds(lambda _: target.copy_(source), 1, device)
    return max(copied, 4 * count / seconds(lambda _: source.sum(), 1, device))


def _us(run: Callable[[], object], device: torch.device) -> float:
    """Microseconds of a call that has only one cache."""
    return seconds(lambda _: run(), 1, device) * 1e6


def measure(
    shape: Shape, batch: int, prefix: int, suffix: int, roof: float, device: torch.device
) -> dict[str, object]:
    """A row: µs, GB/s and % of the roof of a layer's tree decode, and µs of other attention."""
    torch.manual_seed(0)
    dtype = torch.bfloat16
    parts = shared_parts(batch, prefix, [suffix] * batch)
    blocks = 1 + parts[-1].blocks[-1]
    q = torch.randn(batch, shape.heads, shape.width, device=device).to(dtype)
    caches = [
        torch.empty(2, shape.kv_heads, blocks, BLOCK, shape.width, device=device, dtype=dtype)
        .normal_()
        for _ in range(LAYERS if device.type == "cuda" else 1)
    ]  # fmt: skip
    token = 2 * shape.kv_heads * shape.width * dtype.itemsize
    must = (prefix + batch * suffix) * token
    unshared = batch * (prefix + suffix) * token
    tree = TritonAttention(build(parts, BLOCK, min_blocks_saved=1), shape.width**-0.5)
    paged = TritonAttention(build(parts, BLOCK, min_blocks_saved=10**9), shape.width**-0.5)

    def timed(attention: TritonAttention) -> float:
        return seconds(lambda i: attention(q, *caches[i]), len(caches), device)

    tree_s, paged_s = timed(tree), timed(paged)
    row: dict[str, object] = {
        "shape": shape.name,
        "batch": batch,
        "prefix": prefix,
        "suffix": suffix,
        "tree_us": tree_s * 1e6,
        "tree_gb_s": must / tree_s / 1e9,
        "tree_percent_of_roof": 100 * must / tree_s / roof,
        "blocks_shared_us": paged_s * 1e6,
        "blocks_shared_percent_of_roof": 100 * unshared / paged_s / roof,
    }
    try:
        run = sdpa(shape, parts, q, caches[0])
        row["sdpa_us"] = run if isinstance(run, str) else _us(run, device)
    except RuntimeError as error:  # it does not fit
        row["sdpa_us"] = f"failed: {str(error)[:200]}"
    return row


def sdpa(
    shape: Shape, parts: list[SequenceRows], q_RNH: Tensor, cache: Tensor
) -> Callable[[], object] | str:
    """torch's attention. The time to gather the blocks beforehand does not count."""
    length = parts[0].start + 1
    needed = len(parts) * length * 2 * shape.kv_heads * shape.width * 2
    if cache.is_cuda and needed > 0.9 * torch.cuda.mem_get_info()[0]:
        return "does not fit"
    tables = torch.tensor([list(part.blocks) for part in parts], device=cache.device)
    keys, values = (
        torch.stack([side[:, table].flatten(1, 2)[:, :length] for table in tables])
        for side in cache
    )
    q_BN1H = q_RNH[:, :, None]
    return lambda: F.scaled_dot_product_attention(
        q_BN1H, keys, values, enable_gqa=shape.heads != shape.kv_heads
    )


def rows(device: torch.device, dry: bool) -> Iterator[dict[str, object]]:
    """A row for each shape and batch, the most telling first."""
    roof = bandwidth(device)
    yield {"roof_gb_s": roof / 1e9}
    shapes: tuple[Shape, ...] = SHAPES
    cases = [(prefix, batch) for prefix in (6000, 2048) for batch in (64, 16, 32, 8)]
    suffix = 500
    if dry:
        shapes, cases, suffix = (Shape("tiny", 4, 2, 16),), [(40, 3)], 9
    for prefix, batch in cases:
        for shape in shapes:
            yield measure(shape, batch, prefix, suffix, roof, device)
