"""Reads the tokenizer and the chat template of a GGUF file.

The result splits texts as the tokenizer.json of the model's publisher does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers, processors

from weftline_engine.own.models.gguf_header import GgufHeader
from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.gguf_vocabulary import SPLITS, Vocabulary, byte_pairs, pieces
from weftline_engine.own.models.name import ModelUnavailable

# Pre-tokenizers by llama.cpp's name, as steps to add before GPT-2's. These split off each digit.
_DIGITS = (pre_tokenizers.Digits(individual_digits=True),)
_PRE_TOKENIZERS = {"smollm": _DIGITS, "refact": _DIGITS, "starcoder": _DIGITS}
# The pre-tokenizers that are GPT-2's, or are read by an expression of their own.
_READ = frozenset({"default", "gpt-2", *SPLITS})
# Tokens that end a turn, by the families that have them. Some files name only the end of a text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
# The special tokens by their names in tokenizer_config.json, and in a GGUF.
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """The tokenizer of a file, the special tokens by their names, and the template, if any."""

    tokenizer: Tokenizer
    special: dict[str, str]
    template: str | None
    ends: tuple[int, ...]  # the tokens that end an answer


def check_tokenizer(metadata: Metadata, source: Path) -> None:
    """Raise ModelUnavailable if the file's kind of tokenizer cannot be read."""
    kind = metadata.text("tokenizer.ggml.model", "none")
    cut = metadata.text("tokenizer.ggml.pre", "default")
    # A vocabulary of SentencePiece, which GGUF calls "llama", has no pre-tokenizer.
    if kind != "llama" and (kind != "gpt2" or cut not in {*_PRE_TOKENIZERS, *_READ}):
        raise ModelUnavailable(
            f"{source.name} has a tokenizer of kind {kind[:40]}/{cut[:40]}, which cannot be "
            "read from a GGUF: use the model's Hugging Face directory"
        )


def read_tokenizer(metadata: Metadata, source: Path, size: int) -> GgufTokenizer:
    """Read the tokenizer of a model with `size` tokens. Raises ModelUnavailable."""
    try:
        header = GgufHeader(source)
        vocabulary = Vocabulary(
            header.texts("tokenizer.ggml.tokens"),
            _numbers(header, "token_type"),
            _numbers(header, "scores"),
            header.texts("tokenizer.ggml.merges"),
        )
        if metadata.text("tokenizer.ggml.model") == "llama":
            tokenizer = pieces(vocabulary, metadata.architecture)
        else:
            tokenizer = byte_pairs(vocabulary, metadata.text("tokenizer.ggml.pre", "default"))
    except Exception as error:  # tokenizers raises Exception itself, for what a file may hold
        raise ModelUnavailable(
            f"the tokenizer of {source.name} cannot be read: fetch it again"
        ) from error
    first = _PRE_TOKENIZERS.get(metadata.text("tokenizer.ggml.pre", "default"), ())
    if first:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, tokenizer.pre_tokenizer])
    named = {name: metadata.token(f"{key}_token_id") for name, key in _SPECIAL.items()}
    special = {
        f"{name}_token": vocabulary.tokens[token]
        for name, token in named.items()
        if token is not None
    }
    special = {
        name: token for name, token in special.items() if tokenizer.token_to_id(token) is not None
    }
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = _ends_of_texts(header, special, tokenizer)
    template = header.values.get("tokenizer.chat_template")
    return GgufTokenizer(
        tokenizer,
        special,
        template if isinstance(template, str) else None,
        _ends(metadata, tokenizer),
    )


def _numbers(header: GgufHeader, name: str) -> list[float]:
    found = header.values.get(f"tokenizer.ggml.{name}")
    return found if isinstance(found, list) else []


def _ends_of_texts(
    header: GgufHeader, special: dict[str, str], tokenizer: Tokenizer
) -> processors.TemplateProcessing:
    """What the file adds before and behind a text. A vocabulary of SentencePiece begins texts,
    unless it says otherwise, as in llama.cpp."""
    values = header.values
    begins = values.get("tokenizer.ggml.add_bos_token", values["tokenizer.ggml.model"] == "llama")
    first = special.get("bos_token") if begins else None
    last = special.get("eos_token") if values.get("tokenizer.ggml.add_eos_token") else None
    before = [f"{first}:0"] if first else []
    after = [f"{last}:0"] if last else []
    single = " ".join([*before, "$A:0", *after])
    pair = " ".join([single, *(one.replace(":0", ":1") for one in before), "$B:1",
                     *(f"{last}:1" for _ in after)])  # fmt: skip
    added = [(one, tokenizer.token_to_id(one)) for one in (first, last) if one]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=added)


def _ends(metadata: Metadata, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The end of a text, and the ends of a turn or a message."""
    found = [metadata.token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    found += [tokenizer.token_to_id(name) for name in _TURN_ENDS]
    return tuple(sorted({id for id in found if id is not None}))
