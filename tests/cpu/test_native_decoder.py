"""The C decoder against the torch decoder on the same bfloat16 weights, and against itself."""

from __future__ import annotations

import itertools
import platform
import subprocess
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config

from tests.decoder_parts import Parts
from tests.families import FAMILIES
from tests.variants import prefill
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model import native_decoder as decoder
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.llama import LlamaDecoder
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_kernels.attention import TorchAttention
from weftline_kernels.cpu.compiler import SOURCE
from weftline_kernels.cpu.variants import runnable, this_machine
from weftline_kernels.cpu.work_arrays import flatten, queries_of_task
from weftline_kernels.operations import TORCH
from weftline_kernels.rope_store import rope_store
from weftline_kernels.short_conv import short_conv
from weftline_kernels.work_list import SequenceRows, build

Make = Callable[..., Any]
# The mean error of logits, whose standard deviation is 0.8 to 1.8, if the reference rounds keys and
# values to bfloat16, too. A rounding that falls the other way makes most of it. Where the processor
# multiplies bfloat16, every operand of a product is rounded.
MEAN, MEAN_OF_PAIRS = 2e-3, 0.06
# Another order of the same sums moved a logit by 1e-5, or by 0.062 where it changes a rounding.
ONE_SUM = 0.1


@pytest.fixture(
    params=[
        {},
        {"num_key_value_heads": 1, "head_dim": 48, "vocab_size": 256, "intermediate_size": 88},
        {"hidden_size": 72, "head_dim": 16, "num_attention_heads": 12, "num_key_value_heads": 2},
        {"family": Qwen2Config, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 16},
        *FAMILIES.values(),
    ],
    ids=["plain", "odd tails", "wide groups", "biases", *FAMILIES],
)
def pair(
    request: pytest.FixtureRequest, built: Any, tiny_llama: Make, tmp_path: Path
) -> tuple[HostModel, NativeDecoder]:
    """The same weights in float64, with a cache of bfloat16 numbers, and packed."""
    directory = tiny_llama(tmp_path, **request.param)
    path = directory / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path)
    config, weights = read_config(directory), Checkpoint(directory)
    assert isinstance(config, LlamaConfig)
    operations = TORCH._replace(rope_store=stored_in_bfloat16, short_conv=kept_in_bfloat16)
    reference = LlamaDecoder(config, weights, torch.float64, operations=operations)
    return HostModel(reference), NativeDecoder(config, weights, built)


def stored_in_bfloat16(*inputs: Any) -> torch.Tensor:
    """`rope_store` into a cache that holds bfloat16 numbers."""
    found = rope_store(*inputs)
    for cache in inputs[4:6]:
        cache.copy_(cache.bfloat16())
    return found


def kept_in_bfloat16(x: torch.Tensor, taps: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
    """`short_conv` from a cache that holds bfloat16 numbers. A token's own input is not rounded."""
    rounded = x.bfloat16().to(x.dtype)
    return short_conv(rounded, taps, *places) + (x - rounded) * taps[:, -1]


@pytest.fixture
def mean(request: pytest.FixtureRequest) -> float:
    """The mean error that the variant may have."""
    flags = " ".join(request.node.callspec.params["built"])
    return MEAN_OF_PAIRS if "bf16" in flags or "PAIRS" in flags else MEAN


def test_logits_equal_the_torch_decoder(pair: tuple[HostModel, NativeDecoder], mean: float) -> None:
    """300 tokens come in uneven chunks, so that an item is longer than the scores kept at once."""
    reference, native = pair
    tokens = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(0))
    expected = prefill(reference, tokens, [300])
    found = prefill(native, tokens, [300])
    error = (found - expected).abs()
    assert float(error.mean()) < mean
    # A row whose router is almost tied may take another expert.
    share = 1.0 if native.config.experts is None else 0.97
    assert float(error.amax(1).quantile(share)) < 20 * mean
    # The two best tokens of a random model are often almost tied.
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.93


def test_chunks_change_no_bit_of_a_row(pair: tuple[HostModel, NativeDecoder]) -> None:
    """Every row is summed in the same order whatever rows are beside it. This holds up to 256
    tokens, where the context of a single query starts to be cut into parts.
    """
    _, native = pair
    tokens = torch.randint(0, 256, (250,), generator=torch.Generator().manual_seed(0))
    whole = prefill(native, tokens, [250])
    assert torch.equal(prefill(native, tokens, [7, 1, 1, 30, 161, 50]), whole)
    native.threads = 2
    assert torch.equal(prefill(native, tokens, [250]), whole)


def test_a_long_context_is_cut_and_merged(pair: tuple[HostModel, NativeDecoder]) -> None:
    """340 tokens make several tasks for one query. Their merge equals a prefill in one piece."""
    _, native = pair
    tokens = torch.randint(0, 256, (340,), generator=torch.Generator().manual_seed(0))
    whole = prefill(native, tokens, [340])
    found = prefill(native, tokens, [338, 1, 1])
    torch.testing.assert_close(found, whole, atol=ONE_SUM, rtol=0)


def test_drafts_change_no_bit_of_a_long_context(pair: tuple[HostModel, NativeDecoder]) -> None:
    """A token behind 330 others gives the same bits alone and with four drafts behind it, where the
    context is cut into parts, and windows leave most parts out."""
    _, native = pair
    tokens = torch.randint(0, 256, (335,), generator=torch.Generator().manual_seed(0))
    alone = prefill(native, tokens, [330, 1, 1, 1, 1, 1])[330:]
    assert torch.equal(prefill(native, tokens, [330, 5])[330:], alone)


class Texts:
    """A tokenizer that produces no text."""

    def stream(self, prompt: object) -> Texts:
        return self

    def push(self, tokens: object) -> str:
        return ""

    def finish(self) -> str:
        return ""


def test_batched_and_preempted_requests_equal_those_alone(
    pair: tuple[HostModel, NativeDecoder], generate: Make, tokens_of: Make
) -> None:
    """Six requests on two shared prefixes run batched and preempted, and each alone."""
    _, native = pair
    prompts = [(*tokens_of(i % 2, 37), *tokens_of(10 + i, 3 + 5 * i)) for i in range(6)]

    def run(blocks: int, *requests: Any) -> list[list[int]]:
        core = Core(native, SchedulerConfig(blocks=blocks), Texts())
        outputs: dict[str, list[int]] = {op.id: [] for op in requests}
        for op in requests:
            core.submit(op)
        while core.busy:
            for event in core.step():
                outputs[event.op] += getattr(event, "tokens", ()) if hasattr(event, "text") else ()
        return list(outputs.values())

    ops = [generate(f"op{i}", prompt) for i, prompt in enumerate(prompts)]
    alone = [run(64, op)[0] for op in ops]
    assert run(64, *ops) == alone
    assert run(9, *ops) == alone


def test_a_task_of_more_queries_changes_no_bit(
    pair: tuple[HostModel, NativeDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds for more rows than share a block: 768 in wide groups."""
    tokens, found = torch.arange(200) * 7 % 250, []
    for queries in (16, 128):
        monkeypatch.setattr(decoder, "queries_of_task", lambda *step, queries=queries: queries)
        found.append(prefill(pair[1], tokens, [150, 50]))
    assert torch.equal(*found)


def test_every_thread_gets_some_tasks_of_a_step() -> None:
    """A task has as many queries as leave eight tasks for each thread, but at least 16 and at most
    128.
    """
    steps = [(10, 3, 2), (512, 3, 2), (512, 3, 16), (512, 8, 2), (8192, 8, 2)]
    assert [queries_of_task(*step) for step in steps] == [16, 64, 16, 128, 128]


@pytest.mark.parametrize(("shared", "queries"), [(False, 16), (True, 16), (True, 32)])
def test_cut_items_equal_the_work_list(shared: bool, queries: int) -> None:
    """Attention over the flat arrays, in plain numpy, equals attention over the items."""
    torch.manual_seed(0)
    parts = [SequenceRows([*range(20), 20 + i], i, 1, 320 + i) for i in range(3)]
    parts.append(SequenceRows([40, 41, 42, 43], 3, 40, 20))
    work = build(parts, 16, min_blocks_saved=1 if shared else 10**9)
    flat = flatten(work, queries=queries)
    seen: list[list[int]] = [[] for _ in range(work.rows)]
    for block_at, length, query_at, count, start in flat.item.tolist():
        assert count <= queries
        for slot in range(query_at, query_at + count):
            assert flat.visible[slot] <= length
            if flat.visible[slot] < length:  # the item holds the row itself, as the last it sees
                assert start + flat.visible[slot] - 1 == work.positions()[flat.query[slot]]
            slots = [
                int(flat.block[block_at + t // 16]) * 16 + t % 16 for t in range(flat.visible[slot])
            ]
            seen[flat.query[slot]] += slots
    for part in parts:
        for i in range(part.count):
            expected = [part.blocks[t // 16] * 16 + t % 16 for t in range(part.start + i + 1)]
            assert seen[part.first + i] == expected
    rows = [flat.query[flat.part[a:b]].tolist() for a, b in itertools.pairwise(flat.part_at)]
    assert all(set(found) == {row} for row, found in enumerate(rows))
    assert TorchAttention(work, 1.0).merged == shared


@pytest.mark.parametrize("shared", [False, True])
def test_earlier_tokens_are_found_across_blocks_and_items(shared: bool) -> None:
    """Two sequences share two blocks, and the third begins. The nearest earlier token comes first,
    and before the first token of a sequence is none."""
    parts = [SequenceRows([9, 4, 20 + i], i, 1, 32 + i) for i in range(2)]
    parts.append(SequenceRows([7], 2, 3, 0))
    work = build(parts, 16, min_blocks_saved=1 if shared else 10**9)
    assert work.merged == shared
    expected = [[79, 78], [336, 79], [-1, -1], [112, -1], [113, 112]]
    assert work.slots_before(2, 16).tolist() == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are x86's")
def test_it_compiles_for_other_processors(tmp_path: Path) -> None:
    """It compiles with the instruction for bfloat16 pairs, and with AVX2 alone."""
    for target in ("-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma", "-mavx2 -mfma"):
        command = ["gcc", "-O1", *target.split(), "-Wno-psabi", "-fopenmp", "-S", "-o", "-"]
        done = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("vdpbf16ps" in done.stdout) == ("bf16" in target)


def test_a_new_build_takes_the_place_of_the_old(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of an older source goes when a new one is made, and not before."""
    monkeypatch.delenv("WEFTLINE_ISA", raising=False)  # the old build is of the fastest variant
    stale = tmp_path / f"decoder-{runnable(this_machine())[0].name}-0123456789abcdef.so"
    stale.write_bytes(b"")
    assert isinstance(load_decoder(tiny_directory, "bfloat16", 16, tmp_path), NativeDecoder)
    (current,) = tmp_path.glob("*.so")
    assert current != stale
    stale.write_bytes(b"")
    load_decoder(tiny_directory, "bfloat16", 16, tmp_path)
    assert set(tmp_path.glob("*.so")) == {current, stale}


@pytest.mark.parametrize("inner", [2, 63, 576])
@pytest.mark.parametrize("width", [1, 31, 200])
def test_products_equal_torch(built: Any, inner: int, width: int) -> None:
    """Of few rows and many, with widths that fill no panel. Inputs are bfloat16 numbers, so that
    only sums are rounded."""
    generator = torch.Generator().manual_seed(inner + width)
    weight = torch.randn(width, inner, generator=generator).bfloat16()
    x = torch.randn(512, inner, generator=generator).bfloat16().float()
    parts = Parts(built, threads=2)
    packed = parts.weights(weight)
    expected = x.double() @ weight.double().T
    for rows in (1, 2, 5, 6, 7, 13, 32, 97, 512):
        found = parts.product(parts.inputs(x[:rows]), packed, inner, width)
        torch.testing.assert_close(found.double(), expected[:rows], atol=2e-5 * inner**0.5, rtol=0)


def test_rows_of_a_product_do_not_depend_on_each_other(built: Any) -> None:
    """Bit for bit, wherever a row stands and on any number of threads."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(150, 1500, generator=generator).bfloat16()
    x = torch.randn(512, 1500, generator=generator)
    one, two = Parts(built, threads=1), Parts(built, threads=2)
    packed = one.weights(weight)
    whole = two.product(two.inputs(x), packed, 1500, 150)
    for first, count in ((0, 1), (511, 1), (3, 2), (100, 3), (40, 4), (7, 5), (8, 11), (200, 65)):
        rows = one.inputs(x[first : first + count])
        assert torch.equal(one.product(rows, packed, 1500, 150), whole[first : first + count])


def test_exp_is_as_exact_as_it_says(built: Any) -> None:
    """The error is within the bound of the comment. Very negative numbers give 0, and NaN stays
    NaN."""
    x = -torch.linspace(0, 86, 4096)
    found = torch.empty_like(x)
    Parts(built, threads=1).exp(x, found)
    error = (found.double() / x.double().exp() - 1).abs()
    assert bool((error <= (2 - x.double()) * 2**-23).all())
    ends = torch.tensor([0.0, -88.0, -1e30, -float("inf"), float("nan"), -0.0, -1.0, -87.5] * 2)
    found = torch.empty_like(ends)
    Parts(built, threads=1).exp(ends, found)
    assert found[:4].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert found[4].isnan() and found[5] == 1.0 and found[7] == 0.0


@pytest.mark.parametrize(("streams", "threads"), [(1, 1), (4, 1), (2, 2), (8, 2)])
def test_the_floor_reads_every_word(built: Any, streams: int, threads: int) -> None:
    """The bandwidth of the memory is measured by reads that leave nothing out."""
    words = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    built.weftline_read.argtypes = [c_void_p, c_int64, c_int32, c_int64, c_int32]
    built.weftline_read.restype = c_uint32
    found = built.weftline_read(words.ctypes.data, words.nbytes, streams, 4096, threads)
    assert found == int(words.sum(dtype=np.uint64)) % (1 << 32)
