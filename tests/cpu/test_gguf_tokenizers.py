"""A tokenizer that is read from a GGUF is that of transformers, part by part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from weftline_engine.own.models.gguf_tokenizer import read_tokenizer
from weftline_engine.own.models.gguf_vocabulary import SPLITS, WHOLE, Vocabulary
from weftline_engine.own.models.gguf_vocabulary import byte_pairs as tokenizer_of
from weftline_engine.own.models.llama_gguf import metadata_of

NORMAL, CONTROL, OF_USER, BYTE = 1, 3, 4, 6
TEXTS = ("ab  ab c", "a b<s>ab", "I'm 12 naïve\n\n x", " a", "<think>ab</s>")


def byte_pairs(writer: gguf.GGUFWriter, pre: str) -> None:
    """256 bytes, two merges, an end of texts, and a word that the user has added."""
    letters = bytes_to_unicode()
    words = ["ab", "abĠ", "<|endoftext|>", "<think>", "<s>", "é中"]
    writer.add_tokenizer_model("gpt2")
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*(letters[byte] for byte in range(256)), *words])
    control = [CONTROL, OF_USER, CONTROL, CONTROL]
    writer.add_token_types([*[NORMAL] * 258, *control])
    writer.add_token_merges(["a b", "ab Ġ"])
    writer.add_eos_token_id(258)
    writer.add_bos_token_id(260)
    writer.add_add_bos_token(pre == "llama-bpe")


def pieces(writer: gguf.GGUFWriter, architecture: str) -> None:
    """The bytes, some pieces with scores, and no merges."""
    ends = ["<pad>", "<eos>", "<bos>", "<unk>"] if "gemma" in architecture else []
    special = [*ends, "<s>", "</s>"] if ends else ["<unk>", "<s>", "</s>"]
    words = ["▁", "a", "b", "▁a", "ab", "▁ab", "c", "  ", "<think>"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    kinds = [*[CONTROL] * len(special), *[BYTE] * 256, *[NORMAL] * 8, OF_USER]
    writer.add_token_types(kinds)
    writer.add_token_scores([-float(number % 7) for number in range(len(kinds))])
    writer.add_bos_token_id(special.index("<bos>" if ends else "<s>"))
    writer.add_eos_token_id(special.index("<eos>" if ends else "</s>"))
    writer.add_unk_token_id(special.index("<unk>"))
    writer.add_add_eos_token(architecture == "phi3")


@pytest.mark.parametrize(
    ("architecture", "pre"),
    [
        *[("llama", pre) for pre in ("", "default", "gpt-2", *SPLITS)],
        *[(name, None) for name in ("llama", "gemma2", "gemma3", "phi3")],
    ],
)
def test_it_is_that_of_transformers(architecture: str, pre: str | None, tmp_path: Path) -> None:
    """Model, steps before and after it, special tokens, and the tokens of some texts."""
    path = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_chat_template("{{ messages }}")
    if pre is None:
        pieces(writer, architecture)
    else:
        byte_pairs(writer, pre)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = metadata_of(path)
    size = metadata.length("tokenizer.ggml.tokens")
    found = read_tokenizer(metadata, path, size)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file=path.name)
    ours: Any = json.loads(found.tokenizer.to_str())
    expected: Any = json.loads(theirs.backend_tokenizer.to_str())
    # transformers adds the special tokens of a class, also those that the file does not have.
    expected["added_tokens"] = [one for one in expected["added_tokens"] if one["id"] < size]
    if expected["model"]["unk_token"] not in expected["model"]["vocab"]:
        expected["model"]["unk_token"] = None
    expected["model"]["ignore_merges"] = pre in WHOLE  # transformers leaves it out
    for part in expected:
        assert ours[part] == expected[part], part
    assert found.template == theirs.chat_template
    assert found.special == {name: str(one) for name, one in theirs.special_tokens_map.items()}
    for text in TEXTS:
        assert found.tokenizer.encode(text).ids == theirs(text).input_ids


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["Ġabc"]), ("qwen2", ["Ġa", "b", "c"])])
def test_a_word_of_the_vocabulary_is_one_token(pre: str, tokens: list[str]) -> None:
    """Llama 3's vocabulary has words to which no merges lead. Of a Qwen such a word is cut."""
    words = [*bytes_to_unicode().values(), "Ġa", "Ġabc"]
    vocabulary = Vocabulary(words, [NORMAL] * len(words), [], ["Ġ a"])
    assert tokenizer_of(vocabulary, pre).encode(" abc").tokens == tokens
