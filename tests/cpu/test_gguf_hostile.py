"""GGUF files that are cut, altered or made to do harm: one sentence each, and a clean cache."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.blocks import random_rows
from weftline_engine.own.embedded.model.blocks_file import BlocksFile
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.models import ModelUnavailable, resolve
from weftline_engine.own.models.gguf_tokenizer import check_tokenizer
from weftline_engine.own.models.llama_gguf import LlamaGguf
from weftline_kernels.cpu.blocks import WeightType

Write = Callable[..., Path]
LARGE = (1 << 63, 1 << 60, (1 << 64) - 1, 1 << 32, (1 << 31) - 1, 1 << 20, 0)
# A key of one byte that has a list of 2^60 bytes, and one of a list in a list.
ENDLESS = struct.pack("<Q1sIIQ", 1, b"k", 9, 0, 1 << 60)
NESTED = struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 500


def header(tensors: int = 0, pairs: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    """The beginning of a file."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + rest


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A tensor as a header lists it."""
    said = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
    return said + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"GGML", "odd.gguf: it is not a GGUF file"),
        (b"GGUF", "it is truncated or damaged, it ends in its header"),
        (header(version=1), "its GGUF version is 1, and versions 2 and 3"),
        (header(version=3 << 24), "its GGUF version is 50331648"),
        (header(tensors=1_000_000), "states 1000000 tensors, and at most 65536 are read"),
        (header(pairs=1 << 63), "states 9223372036854775808 metadata keys, and at most 4096"),
        (header(pairs=1, rest=struct.pack("<Q", 1 << 62)), "it ends in its header"),
        (header(pairs=1, rest=ENDLESS), "it ends in its header"),
        (header(pairs=1, rest=NESTED), "its metadata key k has a value of type 9"),
        (header(pairs=1, rest=struct.pack("<Q1sI", 1, b"k", 77)), "has a value of type 77"),
        (header(pairs=1, rest=struct.pack("<Q1sI", 1, b"\xff", 4)), "a text is not UTF-8"),
        (header(pairs=2, rest=struct.pack("<Q1sII", 1, b"k", 4, 1) * 2), "it holds k twice"),
        (header(1, rest=tensor(b"t", (1,) * 9, 0, 0)), "states 9 dimensions in t, and at most 4"),
        (header(1, rest=tensor(b"t", (32,), 99, 0)), "stores t in the type 99, which is not known"),
        (header(1, rest=tensor(b"t", (33,), 12, 0)), "has rows of 33 weights, which are no whole"),
        (header(1, rest=tensor(b"t", (8,), 0, 1 << 63)), "it ends before its tensor t"),
        (header(1, rest=tensor(b"t", (1 << 62, 4), 0, 0)), "it ends before its tensor t"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_hostile_header_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Sizes that overflow, places outside, unknown types: nothing is read or allocated for them."""
    source = tmp_path / "odd.gguf"
    source.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=sentence):
        resolve(str(source), home=tmp_path, direct=True)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tensors": {"token_embd.weight": np.zeros((300, 32), np.float32)}},
         r"tokenizer of 260 tokens, which does not fit its token_embd.weight of shape \(300, 32\)"),
        ({"numbers": {"tokenizer.ggml.eos_token_id": 260}},
         "metadata key tokenizer.ggml.eos_token_id is not the number of a token"),
        ({"numbers": {"llama.attention.key_length": 3, "llama.attention.value_length": 3}},
         "its 4 heads of 3 numbers cannot share 2 heads of keys"),
        ({"numbers": {"llama.rope.dimension_count": 10}}, "it turns 10 of the 8 numbers of a head"),
        ({"metadata": {"llama.attention.key_length": "8"}}, "attention.key_length is not a size"),
    ],
)  # fmt: skip
def test_a_header_that_contradicts_itself_is_refused(
    write_gguf: Write, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    """The sentence names the two things that do not fit."""
    source = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ModelUnavailable, match=sentence):
        resolve(str(source), home=tmp_path, direct=True)
    assert left_behind(tmp_path) == []


def test_one_tensor_of_another_quantisation_is_named(
    write_gguf: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is converted to 16 bits because of one tensor: the stage says which and why."""
    from weftline_engine.own.models import for_stream

    blocks = {
        "blk.0.attn_q.weight": (random_rows(WeightType.Q8_0, 32, 32), WeightType.Q8_0),
        "blk.0.ffn_up.weight": (np.zeros((64, 18), np.uint8), 20),  # IQ4_NL
    }
    source = write_gguf(tmp_path / "mixed.gguf", blocks=blocks)
    directory = resolve(str(source), home=tmp_path, direct=True, progress=for_stream())
    assert (directory / "model.safetensors").is_file()
    assert "convert to bf16, because blk.0.ffn_up.weight is IQ4_NL" in capsys.readouterr().err


def test_two_thousand_altered_headers_end_in_a_sentence_or_a_model(
    write_gguf: Write, tmp_path: Path
) -> None:
    """Bytes are flipped, cut out and put in, and numbers become large. Each file is read or refused
    with our error. Some of those that are read are made an entry of the cache, which loads."""
    blocks = {"blk.0.attn_q.weight": (random_rows(WeightType.Q8_0, 32, 32), WeightType.Q8_0)}
    whole = write_gguf(tmp_path / "whole.gguf", blocks=blocks).read_bytes()
    end = whole.index(b"token_embd.weight") + 1200  # the header: pairs, then tensors
    draw, source, home = random.Random(0), tmp_path / "altered.gguf", tmp_path / "home"
    refused, made = 0, 0
    for case in range(2000):
        source.write_bytes(altered(whole, end, draw))
        try:
            check_tokenizer(LlamaGguf(source).metadata, source)
            if case % 100 == 0 or made < 5:
                directory = resolve(str(source), home=home, direct=True)
                read_config(directory)
                if (directory / "blocks.json").is_file():
                    BlocksFile(directory)
                made += 1
        except (ModelUnavailable, ModelError) as error:
            assert "\n" not in str(error)
            refused += 1
    assert 600 < refused < 2000 and made >= 5
    assert all(name.startswith("gguf--") for name in left_behind(home))


def altered(whole: bytes, end: int, draw: random.Random) -> bytes:
    """A copy with one to four changes in its first `end` bytes."""
    content = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(4, end)
        match draw.randrange(5):
            case 0:
                content[at] ^= 1 << draw.randrange(8)
            case 1:
                content[at : at + 8] = struct.pack("<Q", draw.choice(LARGE))
            case 2:
                del content[at : at + draw.randrange(1, 9)]
            case 3:
                content[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 4:
                content[at] = draw.randrange(256)
    return bytes(content[: draw.randrange(end)] if draw.random() < 0.1 else content)


def left_behind(home: Path) -> list[str]:
    """The files of the cache except lock files."""
    return sorted(path.name for path in (home / "models").glob("*") if path.suffix != ".lock")
