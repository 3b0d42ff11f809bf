"""Makes a Hugging Face directory of a GGUF file: weights, config, tokenizer, chat template.

The weights become bf16 safetensors. Or, if the C kernels multiply the file's types as they are, the
directory holds a link to the file and an index of its tensors.

`gguf` reads weights and metadata. transformers reads the tokenizer and the chat template. It is
imported after the file was checked, because it takes 8 s of a slow core, most of them for torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from weftline_engine.models.cache import Cache
from weftline_engine.models.llama_gguf import LlamaGguf
from weftline_engine.models.name import ModelUnavailable
from weftline_engine.models.progress import StageDisplay
from weftline_engine.models.safetensors_file import total_bytes, write_bf16

# Pre-tokenizers by llama.cpp's name, as steps to add before GPT-2's. These split off each digit.
_DIGITS = (pre_tokenizers.Digits(individual_digits=True),)
_PRE_TOKENIZERS = {"smollm": _DIGITS, "refact": _DIGITS, "starcoder": _DIGITS}
# Those that transformers reads as they are, or as GPT-2's, which they are.
_READ = frozenset(
    {"default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "smaug-bpe", "dbrx", "tekken", "qwen2"}
    | {"deepseek-r1-qwen", "gpt-4o"}
)
# Tokens that end a turn, by the families that have them. Some files name only the end of a text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


# The names in a directory whose weights stay in a GGUF file (embedded/model/blocks_file.py).
INDEX, LINK = "blocks.json", "model.gguf"


def convert(
    source: Path, target: Path, cache: Cache, progress: StageDisplay, *, direct: bool = False
) -> None:
    """Write the model of the GGUF file `source` to the empty directory `target`.

    With `direct`, quantised weights stay in the file if all its types can be computed as they are.
    Raises ModelUnavailable if the file is not a GGUF, is truncated, or is of an architecture that
    is not read.
    """
    model = LlamaGguf(source)
    _check_tokenizer(model)
    if direct and model.computed_directly:
        _keep_blocks(model, target, progress)
    else:
        _write_bf16(model, target, cache, progress)
    with progress.stage("read the tokenizer", 1, "files") as meter, _quiet():
        from transformers import PreTrainedTokenizerFast

        tokenizer = _read(PreTrainedTokenizerFast, source)
        meter.at(1)
    limit = model.config["max_position_embeddings"]
    _write_json(target / "config.json", model.config)
    special = {**_special_ids(model.config), **_ends(model, tokenizer.backend_tokenizer)}
    _write_json(target / "generation_config.json", special)
    _write_json(target / "tokenizer_config.json", _tokenizer_config(tokenizer, limit))
    backend = _cut_as(tokenizer.backend_tokenizer, model)
    backend.save(str(target / "tokenizer.json"))
    if tokenizer.chat_template is not None:
        (target / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")


def _keep_blocks(model: LlamaGguf, target: Path, progress: StageDisplay) -> None:
    """Link the file, and write the index of its tensors."""
    kinds = " and ".join(model.kinds())
    with progress.stage(f"keep {kinds} as they are", None, "bytes") as meter:
        (target / LINK).symlink_to(model.path.absolute())
        _write_json(target / INDEX, {"file": LINK, "tensors": model.index()})
        meter.at(sum(model.kinds().values()))


def _write_bf16(model: LlamaGguf, target: Path, cache: Cache, progress: StageDisplay) -> None:
    cache.need(total_bytes(model.shapes), f"the conversion of {model.path.name}")
    with progress.stage("convert to bf16", len(model.shapes), "tensors") as meter:

        def counted() -> Iterator[tuple[str, Any]]:
            for done, weight in enumerate(model.weights()):
                yield weight
                meter.at(done + 1)

        write_bf16(target / "model.safetensors", model.shapes, counted())


def _check_tokenizer(model: LlamaGguf) -> None:
    kind = model.metadata.text("tokenizer.ggml.model", "none")
    cut = model.metadata.text("tokenizer.ggml.pre", "default")
    # A vocabulary of SentencePiece, which GGUF calls "llama", has no pre-tokenizer.
    if kind != "llama" and (kind != "gpt2" or cut not in {*_PRE_TOKENIZERS, *_READ}):
        raise ModelUnavailable(
            f"{model.path.name} has a tokenizer of kind {kind[:40]}/{cut[:40]}, which cannot be "
            "read from a GGUF: use the model's Hugging Face directory"
        )


def _read(reader: Any, source: Path) -> Any:
    """Read the file with a transformers class. Any error comes from the file's contents."""
    try:
        return reader.from_pretrained(
            source.parent, gguf_file=source.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelUnavailable(
            f"the tokenizer of {source.name} cannot be read: fetch it again"
        ) from error


def _special_ids(config: dict[str, Any]) -> dict[str, int]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: config[name] for name in names if name in config}


def _ends(model: LlamaGguf, tokenizer: Tokenizer) -> dict[str, int | list[int]]:
    """The tokens that end an answer: the end of a text, and those of a turn or a message."""
    found = [model.metadata.token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    found += [tokenizer.token_to_id(name) for name in _TURN_ENDS]
    ids = sorted({id for id in found if id is not None})
    return {"eos_token_id": ids[0] if len(ids) == 1 else ids} if ids else {}


def _tokenizer_config(tokenizer: Any, limit: int) -> dict[str, Any]:
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return {
        **tokens,
        "clean_up_tokenization_spaces": False,
        "model_max_length": limit,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _cut_as(tokenizer: Tokenizer, model: LlamaGguf) -> Tokenizer:
    first = _PRE_TOKENIZERS.get(model.metadata.text("tokenizer.ggml.pre", "default"), ())
    if first:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, tokenizer.pre_tokenizer])
    return tokenizer


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers, because its progress bars and messages would mix with ours."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
