"""Reads the tokenizer and the chat template of a GGUF file, with transformers.

transformers is imported after the file was checked, because it takes 8 s of a slow core, most of
them for torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.name import ModelUnavailable

# Pre-tokenizers by llama.cpp's name, as steps to add before GPT-2's. These split off each digit.
_DIGITS = (pre_tokenizers.Digits(individual_digits=True),)
_PRE_TOKENIZERS = {"smollm": _DIGITS, "refact": _DIGITS, "starcoder": _DIGITS}
# The tokenizers that transformers reads as they are, or as GPT-2's, which they are.
_READ = frozenset(
    {"default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "smaug-bpe", "dbrx", "tekken", "qwen2"}
    | {"deepseek-r1-qwen", "gpt-4o"}
)
# Tokens that end a turn, by the families that have them. Some files name only the end of a text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


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
    with _quiet():
        found = _read(source)
    tokenizer = _fitted(found.backend_tokenizer, size)
    first = _PRE_TOKENIZERS.get(metadata.text("tokenizer.ggml.pre", "default"), ())
    if first:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, tokenizer.pre_tokenizer])
    special = {name: str(token) for name, token in found.special_tokens_map.items()}
    return GgufTokenizer(
        tokenizer,
        _known(special, tokenizer),
        found.chat_template,
        _ends(metadata, tokenizer),
    )


def _read(source: Path) -> Any:
    """Read the file with transformers. Any error comes from the file's contents."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(
            source.parent, gguf_file=source.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelUnavailable(
            f"the tokenizer of {source.name} cannot be read: fetch it again"
        ) from error


def _fitted(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """A tokenizer of at most `size` tokens, the rows of the embedding.

    transformers adds the special tokens of a class, such as GPT-2's end of a text, to each of its
    tokenizers. Those that the file does not have are left out, because no row belongs to them.
    """
    if all(token < size for token in tokenizer.get_added_tokens_decoder()):
        return tokenizer
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [one for one in raw["added_tokens"] if one["id"] < size]
    if raw["model"].get("unk_token") not in raw["model"]["vocab"]:
        raw["model"]["unk_token"] = None
    return Tokenizer.from_str(json.dumps(raw))


def _known(special: dict[str, str], tokenizer: Tokenizer) -> dict[str, str]:
    return {name: one for name, one in special.items() if tokenizer.token_to_id(one) is not None}


def _ends(metadata: Metadata, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The end of a text, and the ends of a turn or a message."""
    found = [metadata.token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    found += [tokenizer.token_to_id(name) for name in _TURN_ENDS]
    return tuple(sorted({id for id in found if id is not None}))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers, because its progress bars and messages would mix with ours."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
