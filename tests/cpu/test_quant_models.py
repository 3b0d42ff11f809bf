"""Models whose weights stay quantised: the logits of their values, in any batch, from a GGUF."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.blocks import into_blocks, random_rows
from tests.families import FAMILIES
from tests.random_gguf import write_gguf
from tests.random_models import SHAPES
from tests.variants import prefill
from weftline_engine.own.embedded.model import weights as model_weights
from weftline_engine.own.embedded.model.blocks_file import BlocksFile
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import LlamaConfig, ModelConfig, ModelError
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.llama import LlamaDecoder
from weftline_engine.own.embedded.model.matrix import Matrix, floats
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_engine.own.models import resolve
from weftline_engine.own.models.gguf_header import GgufHeader
from weftline_engine.own.models.llama_gguf import LlamaGguf
from weftline_kernels.cpu.blocks import WeightType
from weftline_kernels.cpu.variants import Cpu

Make = Callable[..., Any]
Write = Callable[..., Path]
W = WeightType
LARGE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
TOKENS = torch.randint(0, 256, (250,), generator=torch.Generator().manual_seed(0))


def mixed(name: str) -> WeightType:
    """As in a file of Q4_K_M: some of values and down are finer. The embedding has another type."""
    if "embed" in name:
        return W.Q8_0
    if "lm_head" in name:
        return W.Q5_K
    return W.Q6_K if "v_proj" in name or "0.mlp.down" in name else W.Q4_K


def with_16_bits(name: str) -> WeightType:
    """A gate of another type than what it multiplies, and a few matrices that are not quantised."""
    return {"gate": W.Q4_1, "o_proj": W.F16, "embed": W.F16}.get(
        next((part for part in ("gate", "o_proj", "embed") if part in name), ""), W.Q4_0
    )


def in_float64(config: ModelConfig, weights: Checkpoint) -> HostModel:
    """The model of these values in torch."""
    assert isinstance(config, LlamaConfig)
    return HostModel(LlamaDecoder(config, weights, torch.float64))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The root mean square of the error over that of what is expected."""
    return float((found - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt())


EXPERTS = {
    **LARGE,
    **FAMILIES["Qwen3, experts"],
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize(
    ("kind_of", "changes"),
    [(mixed, LARGE), (with_16_bits, LARGE), (mixed, EXPERTS)],
    ids=["Q4_K_M", "with 16 bits", "experts"],
)
def test_logits_are_those_of_the_values_in_any_batch(
    built: Any,
    tiny_llama: Make,
    tmp_path: Path,
    kind_of: Callable[[str], WeightType],
    changes: dict[str, Any],
) -> None:
    """Inputs of products are rounded to 8 bits, so logits are near those of float64. A prompt in
    six pieces, or on two threads, gives the bits of the whole prompt."""
    directory = into_blocks(tiny_llama(tmp_path, **changes), kind_of)
    config, weights = read_config(directory), BlocksFile(directory)
    assert isinstance(config, LlamaConfig)
    native = NativeDecoder(config, weights, built)
    whole = prefill(native, TOKENS, [250])
    assert torch.equal(prefill(native, TOKENS, [7, 1, 1, 30, 161, 50]), whole)
    native.threads = 2
    assert torch.equal(prefill(native, TOKENS, [250]), whole)
    reference = prefill(in_float64(config, weights), TOKENS, [250])
    if config.experts is None:
        assert 1e-4 < relative(whole, reference) < 0.1
        return
    # A row whose router is almost tied may take another expert.
    errors_T = (whole - reference).pow(2).mean(1).sqrt() / reference.std()
    assert 1e-4 < float(errors_T.quantile(0.9)) < 0.1


@pytest.mark.parametrize("kind", [W.Q8_0, W.Q4_0], ids=lambda kind: kind.name)
def test_safetensors_are_quantised_when_they_are_loaded(
    tiny_directory: Path, tmp_path: Path, kind: WeightType
) -> None:
    """The decoder computes with the blocks that the gguf package makes of the same weights."""
    decoder = load_decoder(tiny_directory, "bfloat16", 16, tmp_path, quantize=kind.name.lower())
    if not isinstance(decoder, NativeDecoder):
        pytest.skip("no compiler builds the C decoder here")
    tensors = load_file(tiny_directory / "model.safetensors")

    class Quantised(Checkpoint):
        def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
            one = gguf.GGMLQuantizationType(int(kind))
            values = gguf.dequantize(gguf.quantize(tensors[name].float().numpy(), one), one)
            return floats(values)

    weights = Quantised(tiny_directory)
    reference = in_float64(decoder.config, weights)
    found, expected = prefill(decoder, TOKENS, [250]), prefill(reference, TOKENS, [250])
    assert 1e-4 < relative(found, expected) < 0.1


def test_a_gguf_is_computed_as_it_lies(
    write_gguf: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The entry of a quantised file is a link and an index. Every tensor has the values that a
    conversion writes, queries and keys in Hugging Face's order of rows."""
    blocks = {
        f"blk.0.{name}.weight": (random_rows(kind, rows, 32), kind)
        for name, rows, kind in (
            ("attn_q", 32, W.Q8_0), ("attn_k", 16, W.Q4_0), ("attn_v", 16, W.Q4_1),
        )
    }  # fmt: skip
    source = write_gguf(tmp_path / "tiny.gguf", blocks=blocks)
    directory = resolve(str(source), home=tmp_path, direct=True)
    assert (directory / "model.gguf").resolve() == source
    assert not (directory / "model.safetensors").exists()
    model, weights = LlamaGguf(source), BlocksFile(directory)
    for name, values in model.weights():
        rows, *columns = values.shape
        lies = (
            weights.matrix(name, (rows, *columns)).values()
            if columns
            else weights.vector(name, rows)
        )
        assert np.array_equal(lies, values), name
    decoder = load_decoder(directory, "bfloat16", 16, tmp_path / "kernels")
    assert isinstance(decoder, NativeDecoder | HostModel)
    if isinstance(decoder, NativeDecoder):
        assert "MB of weights in memory: BF16 " in capfd.readouterr().err
    reference = in_float64(decoder.config, weights)
    found, expected = prefill(decoder, TOKENS, [60]), prefill(reference, TOKENS, [60])
    assert relative(found, expected) < 0.05
    assert resolve(str(source), home=tmp_path, direct=True) == directory
    moved = source.rename(tmp_path / "moved.gguf")
    other = resolve(str(moved), home=tmp_path, direct=True)
    assert other != directory and (other / "model.gguf").resolve() == moved
    os.utime(moved, ns=(0, 0))  # as a file that was written anew
    assert resolve(str(moved), home=tmp_path, direct=True) not in (directory, other)
    with pytest.raises(ModelError, match=r"model\.gguf cannot be read.*fetch the model again"):
        BlocksFile(directory)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"offset": 1 << 40}, "ends before its tensor"),
        ({"offset": -32}, "ends before its tensor"),
        ({"type": 31}, "lacks or misstates 31 is not a valid WeightType"),
        ({"shape": [1 << 40, 64]}, "lacks or misstates the shape"),
        ({"shape": [64, 33]}, "33 columns are no whole number of Q8_0 blocks"),
        ({"heads": 3}, "lacks or misstates 3 heads"),
    ],
)
def test_an_index_that_is_wrong_is_refused(
    tiny_llama: Make, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    """One sentence says why, before anything is read."""
    directory = into_blocks(tiny_llama(tmp_path), lambda name: W.Q8_0)
    index = json.loads((directory / "blocks.json").read_text())
    index["tensors"]["model.layers.0.self_attn.q_proj.weight"] |= change
    (directory / "blocks.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=sentence):
        BlocksFile(directory)


def test_scales_that_are_not_finite_are_refused(tiny_llama: Make, tmp_path: Path) -> None:
    """A NaN among the weights would make every answer fail later."""
    directory = into_blocks(tiny_llama(tmp_path), lambda name: W.Q8_0)
    at = json.loads((directory / "blocks.json").read_text())["tensors"]["lm_head.weight"]["offset"]
    with (directory / "model.gguf").open("r+b") as file:
        file.seek(at)
        file.write(np.float16("nan").tobytes())
    with pytest.raises(ModelError, match="hold Q8_0 scales that are not finite"):
        load_decoder(directory, "bfloat16", 16, tmp_path / "kernels")


def test_too_little_memory_is_said_before_loading(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has both numbers. With fewer bits a weight the same model fits."""
    monkeypatch.setattr(model_weights, "available_bytes", lambda: 150_000)
    with pytest.raises(ModelError, match=r"the weights need 0\.0 GB of memory, and 0\.0 GB are"):
        load_decoder(tiny_directory, "bfloat16", 16, tmp_path)
    load_decoder(tiny_directory, "bfloat16", 16, tmp_path, quantize="q4_0")


def test_it_is_refused_where_the_kernels_do_not_run(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU without the instructions gets the reason when the model is loaded."""
    monkeypatch.delenv("WEFTLINE_ISA", raising=False)  # the error would name it first
    nothing = Cpu("x86_64", frozenset())
    with pytest.raises(ModelError, match="quantised weights need the C kernels: This CPU lacks"):
        load_decoder(tiny_directory, "bfloat16", 16, tmp_path, machine=nothing, quantize="q8_0")
    with pytest.raises(ModelError, match="quantised in dtype bfloat16, not in float32"):
        load_decoder(tiny_directory, "float32", 16, tmp_path, quantize="q8_0")


# As much of the file is the embedding as in Qwen3 1.7B, 0.23.
LONG_VOCABULARY = replace(SHAPES["qwen3-0.6b"], layers=8, vocabulary=25_600)
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a file of Q4_K_M with 97 MB. It has no tokenizer, which no decoder reads."""
    folder = tmp_path_factory.mktemp("large")
    model = LlamaGguf(write_gguf(folder / "model.gguf", LONG_VOCABULARY, "q4_k_m", words=True))
    (folder / "config.json").write_text(json.dumps(model.config))
    index = {"file": "model.gguf", "tensors": model.index()}
    (folder / "blocks.json").write_text(json.dumps(index))
    return folder


def test_a_file_of_random_weights_has_the_shape_of_its_model(tmp_path: Path) -> None:
    """Of LFM2 a layer without heads of keys has a convolution, whose taps no file quantises."""
    small = replace(SHAPES["lfm2-350m"], layers=4, vocabulary=300, hidden=256, mlp=512)
    path = write_gguf(tmp_path / "lfm2.gguf", small, "q8_0", words=True)
    (tmp_path / "config.json").write_text(json.dumps(LlamaGguf(path).config))
    found = read_config(tmp_path)
    assert isinstance(found, LlamaConfig)
    assert [found.kind(layer).taps for layer in range(4)] == [3, 3, 0, 3]
    assert found == replace(small, eos=found.eos, kinds=found.kinds)
    tensors = GgufHeader(path).tensors
    taps = {name: one.kind.name for name, one in tensors.items() if "shortconv.conv." in name}
    assert taps == {f"blk.{layer}.shortconv.conv.weight": "F32" for layer in (0, 1, 3)}
    assert tensors["blk.0.shortconv.in_proj.weight"].kind.name == "Q8_0"


def held(what: str) -> int:
    """The bytes of this process in a line of its status."""
    [line] = [one for one in STATUS.read_text().splitlines() if one.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not PEAK.exists(), reason="the system does not count resident memory")
def test_a_file_is_loaded_in_little_more_memory_than_its_size(built: Any, large: Path) -> None:
    """At no time are there two copies of the weights, and none is widened to floats. The most are
    the panels and the source of one layer, or of the embedding at first. Then there are panels
    alone. 8 MB are of threads and such."""
    config, size = read_config(large), (large / "model.gguf").stat().st_size
    assert isinstance(config, LlamaConfig) and size > 80_000_000
    gc.collect()
    PEAK.write_text("5")  # from now on the peak is counted anew
    before = held("VmRSS")
    decoder = NativeDecoder(config, BlocksFile(large), built)
    most, then = held("VmHWM") - before, held("VmRSS") - before
    assert 1.0 < sum(decoder.weight_bytes.values()) / size < 1.04
    assert most < 1.3 * size and then < 1.2 * size
