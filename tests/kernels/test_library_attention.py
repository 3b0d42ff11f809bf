"""A library computes what each sequence has alone, our kernel what is shared, and both are merged.

The libraries are stand-ins of their documented interfaces (tests/attention_libraries.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.attention_libraries import ALL, stand_in
from tests.kernels.test_attention_triton import BLOCK, SCALE, STEPS, inputs, rows
from tests.tensor_reach import tensors_of
from weftline_kernels import attention_choice
from weftline_kernels.attention import attention_reference
from weftline_kernels.attention_choice import (
    OURS,
    TrialSize,
    choose,
    installed,
    measure,
    told,
)
from weftline_kernels.device_tiles import Capacity
from weftline_kernels.jit import INTERPRETED
from weftline_kernels.libraries import FLASH_ATTENTION, FLASHINFER, TORCH, AttentionLibrary
from weftline_kernels.library_attention import ADAPTERS, AttentionShape, OwnRoom, refusal
from weftline_kernels.own_merge import own_merge, own_merge_reference
from weftline_kernels.own_rows import OwnRows, shared_part, with_slots
from weftline_kernels.step_attention import StepAttention, StepKind, Variant
from weftline_kernels.tiles import cut
from weftline_kernels.work_list import WorkList, build

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start")

CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 16, BLOCK, torch.float32, SCALE)
BEHIND = STEPS["a prompt behind a shared prefix"]


@pytest.fixture(params=ALL, ids=lambda one: one.name)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttentionLibrary:
    one: AttentionLibrary = request.param
    stand_in(monkeypatch, one)
    return one


def test_the_own_part_has_a_table_for_each_sequence() -> None:
    """Three sequences share five blocks. What each has behind them is its own."""
    work = build(BEHIND, BLOCK, min_blocks_saved=1)
    own = OwnRows.of(work)
    assert (work.shared, len(shared_part(work).items), work.rows) == (1, 1, 13)
    assert own.starts.tolist() == [0, 11, 12, 13]
    assert own.tables.tolist() == [0, 3, 4, 5]
    assert own.blocks.tolist() == [10, 11, 12, 13, 14]
    assert own.lengths.tolist() == [11, 3, 1]
    assert own.table().tolist() == [[10, 11, 12], [13, 0, 0], [14, 0, 0]]
    assert (own.most_queries, own.most_blocks) == (11, 3)


def test_a_step_is_padded_with_rows_of_one_token() -> None:
    """A graph of four rows computes two sequences, and two rows that see one token of block 0."""
    work = build(rows(([5, 6], 1, 4), ([7], 1, 2)), BLOCK)
    own = OwnRows.of(work).padded(4)
    assert own.starts.tolist() == [0, 1, 2, 3, 4]
    assert own.tables.tolist() == [0, 2, 3, 4, 5]
    assert own.blocks.tolist() == [5, 6, 7, 0, 0]
    assert own.lengths.tolist() == [5, 3, 1, 1]
    assert OwnRows.nothing().padded(2).starts.tolist() == [0, 1, 2]


def test_each_partial_result_gets_a_slot() -> None:
    """Rows 0 and 1 have three shared tiles, row 2 has two, row 3 has one, and row 4 has none. A row
    with tiles has one more slot, which no tile writes, for its own result."""
    work = shared_part(build(STEPS["three levels"], BLOCK, min_blocks_saved=1))
    tiles = cut(work, BLOCK, group=2, split=64)
    given = with_slots(tiles)
    counts = np.diff(given.first_R).tolist()
    seen = np.zeros(work.rows, int)
    for item in work.items:
        seen[item.queries] += 1
    assert seen.tolist() == [3, 3, 2, 1, 0]
    assert counts == [4, 4, 3, 2, 0]
    unused = (given.first_R[1:][:4] - 1).tolist()
    used = sorted(given.queries_Q3[:, 2].tolist())
    assert sorted(used + unused) == list(range(given.slots))
    assert tiles.slots < given.slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_results_are_merged_with_those_of_slots(dtype: torch.dtype) -> None:
    """Rows with no slot, with one, and with more than are loaded at a time. The library's
    log-sum-exp is of base e, and transposed."""
    torch.manual_seed(0)
    first = torch.tensor([0, 0, 2, 23], dtype=torch.int32)
    part, lse = torch.randn(23, 2, 20), 5 * torch.randn(23, 2)
    part[[1, 22]] = lse[[1, 22]] = float("nan")  # the last slots, for the own results
    own, own_lse = torch.randn(3, 2, 20).to(dtype), 3 * torch.randn(2, 3).T
    expected = own_merge_reference(part, lse, first, own, own_lse, 1.4427)
    found = own.clone()
    own_merge(part, lse, first, found, own_lse, 1.4427)
    assert torch.equal(found[0], own[0])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", STEPS)
def test_both_parts_together_are_the_reference(name: str, library: AttentionLibrary) -> None:
    """Every step of our kernel's own tests, with prompts and up to three levels of sharing."""
    plain = build(STEPS[name], BLOCK, min_blocks_saved=10**9)
    work = build(STEPS[name], BLOCK, min_blocks_saved=1)
    q, keys, values = inputs(work, 2, 2, 16, torch.float32)
    expected = attention_reference(plain, SCALE)(q, keys, values)
    step = StepAttention(SHAPE, CPU, ADAPTERS[library](SHAPE, None, CPU))
    assert step.load(work)
    assert (step.loaded is Variant.OWN) == (work.shared == 0)
    found = step.function(step.loaded)(q, keys, values)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_one_set_of_buffers_serves_decode_steps(library: AttentionLibrary) -> None:
    """With and without sharing, of few and of many rows, as a graph is replayed."""
    own = ADAPTERS[library](SHAPE, OwnRoom(20, 11), CPU)
    step = StepAttention(SHAPE, CPU, own, Capacity(40, 60, 60, 20, 80))
    assert set(step.variants(StepKind.DECODE)) == {Variant.OWN}
    for name in ("sixteen sharers", "one token alone", "three levels"):
        work = build(STEPS[name], BLOCK, min_blocks_saved=1)
        assert step.load(work)
        q, keys, values = inputs(work, 2, 2, 16, torch.float32)
        padded = torch.zeros(20, *q.shape[1:])
        padded[: work.rows] = q
        found = step.function(step.loaded)(padded, keys, values)[: work.rows]
        expected = attention_reference(work, SCALE)(q, keys, values)
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    small = StepAttention(SHAPE, CPU, ADAPTERS[library](SHAPE, OwnRoom(20, 11), CPU),
                          Capacity(1, 1, 1, 20, 1))  # fmt: skip
    assert not small.load(build(STEPS["three levels"], BLOCK, min_blocks_saved=1))


def test_the_fastest_is_chosen_for_each_kind_of_step() -> None:
    """A library that gains less than 5 % changes nothing."""
    seconds = {
        StepKind.DECODE: {OURS: 20e-6, "A": 19.6e-6, "B": 25e-6},
        StepKind.SHARED: {OURS: 20e-6, "A": 30e-6, "B": 30e-6},
        StepKind.PROMPT: {OURS: 20e-6, "A": 15e-6, "B": 12e-6},
    }
    chosen = choose(seconds)
    assert list(chosen.values()) == [OURS, OURS, "B"]
    trial = attention_choice.Trial(seconds, {TORCH: "it is too old"})
    assert told(trial, chosen) == (
        "attention: weftline for decoding (weftline 20 us, A 20 us, B 25 us a layer); weftline for "
        "decoding behind a shared prefix (weftline 20 us, A 30 us, B 30 us a layer); B for prompts "
        "(B 12 us, A 15 us, weftline 20 us a layer). torch's varlen_attn is left out: it is too "
        "old."
    )
    assert choose({}) == {}
    assert told(attention_choice.Trial(), {}) == "attention: weftline's kernels."


def ticks(*seconds: float) -> Iterator[float]:
    """The readings of a clock around runs that take these seconds, in turn."""
    now = 0.0
    while True:
        for one in seconds:
            for _ in range(1 + attention_choice.REPEATS):
                yield now
                now += one
                yield now


def test_what_is_measured_is_one_layer_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes 2 ms for two layers, FlashInfer 1 ms, and FlashAttention computes nonsense."""
    monkeypatch.setattr(attention_choice, "LAYERS", 2)
    monkeypatch.setattr(attention_choice, "REPEATS", 2)
    asked = stand_in(monkeypatch, FLASHINFER)
    stand_in(monkeypatch, FLASH_ATTENTION)
    wrong = __import__("flash_attn_interface").flash_attn_with_kvcache
    monkeypatch.setattr(
        "flash_attn_interface.flash_attn_with_kvcache",
        lambda *args, **words: (2 * (found := wrong(*args, **words))[0], *found[1:]),
    )
    monkeypatch.setattr(attention_choice, "refusal", lambda library, shape: "")
    shape = AttentionShape(2, 1, 16, BLOCK, torch.float32, SCALE)
    clock = ticks(2e-3, 1e-3)
    trial = measure(
        shape, CPU, lambda compute: compute, [FLASHINFER, FLASH_ATTENTION],
        size=TrialSize(2, 5, 16, 6), clock=lambda: next(clock),
    )  # fmt: skip
    assert list(trial.refused) == [FLASH_ATTENTION]
    assert "its result differs from ours by" in trial.refused[FLASH_ATTENTION]
    for kind in StepKind:
        each = trial.seconds[kind]
        assert list(each) == [OURS, FLASHINFER.name]
        assert each[OURS] == pytest.approx(1e-3) and each[FLASHINFER.name] == pytest.approx(5e-4)
    assert set(choose(trial.seconds).values()) == {FLASHINFER.name}
    functions = {one.function for one in asked}
    assert functions == {
        "BatchDecodeWithPagedKVCacheWrapper",
        "BatchPrefillWithPagedKVCacheWrapper",
    }


def test_a_trial_owns_all_that_its_graphs_read(
    library: AttentionLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph keeps addresses, and forgets the function that it was captured with. Whenever a
    graph of the trial runs, each tensor that its function reached still lives."""
    monkeypatch.setattr(attention_choice, "refusal", lambda library, shape: "")
    runs: list[int] = []

    def forget(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result, seen = compute(), [ref(tensor) for tensor in tensors_of(compute)]

        def replay() -> Tensor:
            runs.append(len(seen))
            gc.collect()
            assert all(tensor() is not None for tensor in seen)
            return result

        return replay

    trial = measure(SHAPE, CPU, forget, [library], size=TrialSize(2, 5, 16, 6))
    assert trial.refused == {} and min(runs) > 3


def test_a_library_that_cannot_is_left_out() -> None:
    """FlashInfer is not there, and FlashAttention 2 in torch wants larger blocks: nothing is
    measured, and each has its reason."""
    shape = AttentionShape(8, 2, 128, 16, torch.bfloat16, SCALE)
    trial = measure(shape, CPU, never, [TORCH])
    assert trial.seconds == {} and trial.refused == {
        TORCH: "FlashAttention 2 reads blocks of 256 tokens, and ours have 16"
    }
    large = AttentionShape(8, 2, 128, 256, torch.bfloat16, SCALE)
    assert refusal(TORCH, large) == refusal(FLASHINFER, shape) == ""
    odd = AttentionShape(8, 2, 96, 16, torch.float16, SCALE)
    assert refusal(FLASHINFER, odd) == "it has no kernel for heads of 96"
    assert refusal(FLASH_ATTENTION, odd) == ""
    assert refusal(FLASH_ATTENTION, SHAPE) == "it does not compute in float32"
    assert TORCH in installed() and FLASHINFER not in installed()


def never(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    raise AssertionError("nothing is measured")


def test_a_work_list_says_how_many_items_are_shared() -> None:
    """The items of several sequences come first."""
    work = build(STEPS["three levels"], BLOCK, min_blocks_saved=1)
    assert (work.shared, len(work.items), work.merged) == (3, 8, True)
    assert not WorkList((), 0).merged
