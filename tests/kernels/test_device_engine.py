"""The embedded engine with interpreted Triton kernels gives the tokens of the torch path."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from tests.engines import llama, mixed, network, on_cpu, on_device, requests, run
from tests.tensor_reach import tensors_of
from weftline_engine.own.embedded.model import device_model
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.model.device_model import (
    CapturedStep,
    DeviceModel,
    capacity,
    sizes,
)
from weftline_kernels.jit import INTERPRETED
from weftline_kernels.operations import TRITON
from weftline_kernels.tiles import Cutter
from weftline_kernels.work_list import SequenceRows, build

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")

CPU = torch.device("cpu")


class Again:
    """Stands for captured graphs: it computes from the buffers that a graph would read."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        compute()

        def replay() -> Tensor:
            self.replays += 1
            return compute()

        return replay


# Rows that pad a captured step are computed from what their memory holds, which may be infinite.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        pytest.param(llama(), 3, id="grouped heads, two layers"),
        pytest.param(llama(kv_heads=4, width=12, layers=1), 3, id="odd heads"),
        pytest.param(mixed(), 3, id="every difference of a family"),
    ],
)
def test_the_device_engine_gives_the_tokens_of_the_torch_engine(
    config: ModelConfig, tokens: int
) -> None:
    """Six requests run, at most four at a time, in batches of four, three, two and one. They share
    a prefix that ends inside a block and use every way to sample. A long prompt runs in chunks."""
    capture = Again()
    expected = run(on_cpu(config), requests(tokens=tokens))
    assert run(on_device(config, capture, CPU), requests(tokens=tokens)) == expected
    # They are six ways indeed: of three tokens each, two of them happen to agree.
    assert len({tuple(found) for found in expected}) >= 5
    # Each request's first token comes out of its prompt's last chunk, in a launched step.
    assert tokens <= capture.replays <= 6 * (tokens - 1)


def test_a_step_beyond_the_captured_sizes_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for partial results, steps that share a prefix cannot be replayed."""
    expected = run(on_cpu(llama(layers=1)), requests(tokens=3))
    monkeypatch.setattr(device_model, "_SLOTS_A_ROW", 0)
    monkeypatch.setattr(device_model, "_LEVELS", 1)
    capture = Again()
    assert run(on_device(llama(layers=1), capture, CPU), requests(tokens=3)) == expected
    assert capture.replays < 4


def test_padding_reaches_no_other_row() -> None:
    """A step uses three of four captured rows. The fourth is token 0, whose embedding is NaN here.
    The NaN reaches no block and no other row."""
    ops = [op for i, op in enumerate(requests(tokens=3)) if i in (1, 4, 5)]
    expected = run(on_device(llama(layers=1), Again(), CPU), ops)
    assert not any(0 in tokens for tokens in expected)
    engine = on_device(llama(layers=1), Again(), CPU)
    assert isinstance(engine.worker.decoder, DeviceModel)
    engine.worker.decoder.network.embedding_VC[0] = float("nan")  # type: ignore[attr-defined]
    assert run(engine, ops) == expected
    assert engine.cache.isfinite().all()


def test_a_largest_batch_that_is_no_power_of_two_has_its_size() -> None:
    """Steps are captured for powers of two, and for the largest batch as it is."""
    assert sizes(6) == (1, 2, 4, 6)
    assert sizes(1) == (1,)
    assert sizes(64) == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "limit"),
    [
        pytest.param(12, 2, 32_768, id="Qwen2.5-1.5B"),
        pytest.param(28, 4, 32_768, id="Qwen2.5-7B"),
        pytest.param(32, 8, 131_072, id="Llama-3.1-8B"),
        pytest.param(32, 32, 16_384, id="a head for each query head"),
    ],
)
@pytest.mark.parametrize("units", [58, 132])
def test_long_contexts_are_replayed(heads: int, kv_heads: int, limit: int, units: int) -> None:
    """One to eight sequences of any length up to the model's, on a small and on a large device."""
    config = replace(llama(kv_heads=kv_heads), heads=heads, context_limit=limit)
    cutter = Cutter(heads // kv_heads, kv_heads, units, 16)
    for rows in (1, 2, 4, 8):
        room = capacity(config, rows, limit * rows // 16, 16, units)
        for tokens in range(limit // 8, limit + 1, limit // 8):
            own = tokens // 16 + 1
            parts = [
                SequenceRows(range(i * own, (i + 1) * own), i, 1, tokens - 1) for i in range(rows)
            ]
            tiles = cutter.cut(build(parts, 16, min_blocks_saved=8))
            assert room.holds(tiles), (rows, tokens, tiles.slots, room)


def test_a_captured_step_owns_all_that_its_graph_reads() -> None:
    """A graph keeps addresses, not tensors. Here it forgets the function that it was captured with,
    as a CUDA graph does, and each tensor that the function reached still lives."""
    seen: list[ReferenceType[Tensor]] = []

    def forget(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        seen.extend(ref(tensor) for tensor in tensors_of(compute))
        return lambda: torch.zeros(1)

    weights = network(llama(), torch.float32, CPU, TRITON)
    cache = weights.new_cache(8, 4)
    step = CapturedStep(weights, 2, cache, forget, most=4)
    gc.collect()
    assert len(seen) > 20 and all(one() is not None for one in seen)
    assert isinstance(step, CapturedStep)


def test_capacities_hold_what_parrot_decodes() -> None:
    """LLaMA-7B with 64 sequences that share 6,000 tokens, or share none."""
    config = llama(kv_heads=4)
    prefix = list(range(375))
    shared = [
        SequenceRows([*prefix, *range(400 + 32 * i, 432 + 32 * i)], i, 1, 6500) for i in range(64)
    ]
    apart = [SequenceRows(list(range(407 * i, 407 * i + 407)), i, 1, 6500) for i in range(64)]
    wide = replace(config, context_limit=8192)
    room = capacity(wide, 64, 407 * 64, 16, 132)
    for parts in (shared, apart):
        work = build(parts, 16, min_blocks_saved=8)
        tiles = Cutter(1, 4, 132, 16).cut(work)
        assert room.holds(tiles), (len(tiles.fields_TF), tiles.slots, room)
