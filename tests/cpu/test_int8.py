"""int8 in the C decoder: exact sums, the same bits in every variant, and rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.decoder_parts import Parts
from tests.variants import prefill
from weftline_engine.embedded.model.checkpoint import Checkpoint
from weftline_engine.embedded.model.config import LlamaConfig, ModelError
from weftline_engine.embedded.model.decoders import load_decoder
from weftline_engine.embedded.model.families import read_config
from weftline_engine.embedded.model.llama import LlamaDecoder
from weftline_engine.embedded.model.native_decoder import NativeDecoder
from weftline_kernels.cpu.variants import Cpu

Make = Callable[..., Any]


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as whole numbers of at most 127, and their scales."""
    most = rows.abs().amax(1)
    inverse = torch.full_like(most, 127) / most  # torch computes 127 / most with a reciprocal
    return (rows.double() * inverse.double()[:, None]).round(), most / 127


@pytest.mark.parametrize(("inner", "width"), [(2, 31), (63, 200), (576, 33)])
def test_every_variant_computes_the_same_bits(built: Any, inner: int, width: int) -> None:
    """They are the exact whole numbers, times the scale of the row, times that of the column."""
    generator = torch.Generator().manual_seed(inner)
    x = torch.randn(130, inner, generator=generator).bfloat16().float()
    weight = torch.randn(width, inner, generator=generator).bfloat16().float()
    parts = Parts(built, threads=2)
    packed, scales = parts.weights_int8(weight)
    small_x, scale_x = rounded(x)
    small_w = (weight / scales[:width, None]).round().double()
    expected = (small_x @ small_w.T).float() * scale_x[:, None] * scales[None, :width]
    for rows in (1, 2, 5, 6, 7, 13, 32, 130):
        found = parts.product(parts.inputs(x[:rows]), packed, inner, width, scales)
        assert torch.equal(found, expected[:rows])


def test_the_largest_numbers_do_not_overflow(built: Any) -> None:
    """All of them at once, of both signs, as instructions that add pairs in 16 bits would."""
    x, weight = torch.ones(3, 4096), torch.ones(32, 4096)
    x[1], weight[::2] = -1, -1
    parts = Parts(built, threads=1)
    packed, scales = parts.weights_int8(weight)
    found = parts.product(parts.inputs(x), packed, 4096, 32, scales)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-6, atol=0)


def test_a_row_that_is_not_finite_spoils_no_other(built: Any) -> None:
    """Rows with NaN or infinity give NaN. A row of zeros, which has no scale, gives zeros."""
    x = torch.ones(4, 64)
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    x[3] = 0
    parts = Parts(built, threads=1)
    packed, scales = parts.weights_int8(torch.ones(32, 64))
    found = parts.product(parts.inputs(x), packed, 64, 32, scales)
    torch.testing.assert_close(found[0], torch.full((32,), 64.0))
    assert found[1].isnan().all() and found[2].isnan().all() and (found[3] == 0).all()


@pytest.mark.parametrize(
    "shape",
    [{}, {"num_key_value_heads": 1, "head_dim": 48, "vocab_size": 256, "intermediate_size": 88}],
    ids=["plain", "odd tails"],
)
def test_chunks_change_no_bit_and_logits_stay_near(
    built: Any, tiny_llama: Make, tmp_path: Path, shape: dict[str, Any]
) -> None:
    """A prompt in six pieces, or on two threads, gives the bits of the whole prompt. The logits are
    within a tenth of those of float64."""
    directory = tiny_llama(tmp_path, **shape)
    path = directory / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path)
    config, weights = read_config(directory), Checkpoint(directory)
    assert isinstance(config, LlamaConfig)
    native = NativeDecoder(config, weights, built, int8=True)
    tokens = torch.randint(0, 256, (250,), generator=torch.Generator().manual_seed(0))
    whole = prefill(native, tokens, [250])
    assert torch.equal(prefill(native, tokens, [7, 1, 1, 30, 161, 50]), whole)
    native.threads = 2
    assert torch.equal(prefill(native, tokens, [250]), whole)
    reference = prefill(LlamaDecoder(config, weights, torch.float64), tokens, [250])
    error = (whole - reference).pow(2).mean().sqrt() / reference.pow(2).mean().sqrt()
    assert 1e-4 < float(error) < 0.1


def test_it_is_refused_where_the_kernels_do_not_run(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU without the instructions gets the reason when the model is loaded."""
    monkeypatch.delenv("WEFTLINE_ISA", raising=False)  # the error would name it first
    nothing = Cpu("x86_64", frozenset())
    with pytest.raises(ModelError, match="int8 needs the C kernels: This CPU lacks abm, avx"):
        load_decoder(tiny_directory, "int8", 16, tmp_path, machine=nothing)
