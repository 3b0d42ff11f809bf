"""A local GGUF file is converted once and keyed by its content. An odd one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from weftline_engine.own.models import ModelUnavailable, cached, resolve

Write = Callable[..., Path]


def left_behind(home: Path) -> list[str]:
    """List the files of the cache except lock files."""
    return sorted(path.name for path in (home / "models").glob("*") if path.suffix != ".lock")


def test_a_gguf_becomes_a_directory(write_gguf: Write, tmp_path: Path) -> None:
    """The result has eleven tensors, a tied head, and a tokenizer that merges a and b."""
    source = write_gguf(tmp_path / "tiny.gguf")
    assert cached(str(source), home=tmp_path) is None
    directory = resolve(str(source), home=tmp_path)
    assert left_behind(tmp_path) == [directory.name]
    config = json.loads((directory / "config.json").read_text())
    assert (config["vocab_size"], config["head_dim"], config["tie_word_embeddings"]) == (
        260,
        8,
        True,
    )
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode("<start>ab ").tokens == ["<start>", "ab", "Ġ"]
    assert not (directory / "chat_template.jinja").exists()


def test_the_content_is_the_key_not_the_name(write_gguf: Write, tmp_path: Path) -> None:
    """A copy under another name is the same entry. Other content is another entry."""
    first = resolve(str(write_gguf(tmp_path / "a.gguf")), home=tmp_path)
    assert cached(str(write_gguf(tmp_path / "b.gguf")), home=tmp_path) == first
    other = write_gguf(tmp_path / "c.gguf", metadata={"general.note": "another"})
    assert resolve(str(other), home=tmp_path) != first


def test_the_end_of_a_turn_ends_an_answer(write_gguf: Write, tmp_path: Path) -> None:
    """A file that names the end of a text alone may have a token that ends a turn. Such a token is
    also found by the file's own key."""

    def ends(name: str, **changes: object) -> object:
        source = write_gguf(tmp_path / name, **changes)
        directory = resolve(str(source), home=tmp_path)
        return json.loads((directory / "generation_config.json").read_text())["eos_token_id"]

    assert ends("plain.gguf") == 2
    assert ends("gemma.gguf", stop="<end_of_turn>", numbers={"tokenizer.ggml.eos_token_id": 0}) == [
        0,
        2,
    ]
    assert ends("keys.gguf", numbers={"tokenizer.ggml.eot_token_id": 1}) == [1, 2]


def test_a_vocabulary_of_sentencepiece_is_read(write_gguf: Write, tmp_path: Path) -> None:
    """Text that no token holds becomes bytes, spaces become their mark, and text comes back."""
    source = write_gguf(tmp_path / "tiny.gguf", sentencepiece=True)
    tokenizer = Tokenizer.from_file(str(resolve(str(source), home=tmp_path) / "tokenizer.json"))
    found = tokenizer.encode("hi é", add_special_tokens=False)
    assert found.tokens[-4:] == ["<0x69>", "\u2581", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(found.ids).strip() == "hi é"
    assert tokenizer.encode("hi").tokens[0] == "<start>"


def test_an_untied_head_is_kept(write_gguf: Write, tmp_path: Path) -> None:
    """output.weight becomes lm_head.weight."""
    head = np.full((260, 32), 0.5, dtype=np.float32)
    source = write_gguf(tmp_path / "tiny.gguf", tensors={"output.weight": head})
    directory = resolve(str(source), home=tmp_path)
    config = json.loads((directory / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    weights = load_file(directory / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], torch.full((260, 32), 0.5).bfloat16())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"architecture": "gpt-oss"},
            "architecture 'gpt-oss' is not computed here, because of its attention sinks and MXFP4",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "yarn"}},
            r"odd\.gguf: it lacks the metadata key llama\.rope\.scaling\.factor",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "spiral"}},
            r"its rope\.scaling\.type 'spiral' cannot be read",
        ),
        ({"metadata": {"tokenizer.ggml.pre": "bloom"}}, "tokenizer of kind gpt2/bloom"),
        ({"without": "blk.0.attn_k.weight"}, r"lacks the tensor blk\.0\.attn_k\.weight"),
        (
            {"tensors": {"blk.0.attn_q.bias": np.zeros(32, dtype=np.float32)}},
            r"lacks the tensor blk\.0\.attn_k\.bias",
        ),
        (
            {"tensors": {"output_norm.weight": np.zeros(16, dtype=np.float32)}},
            r"output_norm\.weight has shape \(16,\), not \(32,\)",
        ),
        (
            {"tensors": {"output_norm.weight": np.zeros(32, dtype=np.int8)}},
            "stores output_norm.weight as I8, which cannot be dequantised",
        ),
        (
            {"tensors": {"output_norm.weight": np.full(32, np.nan, dtype=np.float32)}},
            "weights in model.norm.weight that are not finite",
        ),
    ],
)
def test_a_gguf_that_is_not_as_it_should_be_is_refused(
    write_gguf: Write, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    """One sentence says why, and the cache stays empty."""
    source = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ModelUnavailable, match=sentence):
        resolve(str(source), home=tmp_path)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.99])
def test_a_truncated_gguf_is_refused(write_gguf: Write, tmp_path: Path, share: float) -> None:
    """It may be cut in the header, the metadata or the tensors."""
    source = write_gguf(tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])
    with pytest.raises(ModelUnavailable, match=r"truncated or damaged|is not a GGUF"):
        resolve(str(cut), home=tmp_path)
    assert left_behind(tmp_path) == []


def test_noise_behind_the_magic_is_refused(tmp_path: Path) -> None:
    """Bytes that only begin like a GGUF raise our error, whatever the reader makes of them."""
    random = np.random.default_rng(0)
    for case in range(50):
        source = tmp_path / f"{case}.gguf"
        version = (3).to_bytes(4, "little")
        source.write_bytes(b"GGUF" + version + random.bytes(int(random.integers(0, 400))))
        with pytest.raises(ModelUnavailable):
            resolve(str(source), home=tmp_path)
    assert left_behind(tmp_path) == []
