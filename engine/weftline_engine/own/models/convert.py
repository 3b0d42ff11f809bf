"""Makes a Hugging Face directory of a GGUF file: weights, config, tokenizer, chat template.

The weights become bf16 safetensors. Or, if the C kernels multiply the file's types as they are, the
directory holds a link to the file and an index of its tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weftline_engine.own.models.cache import Cache
from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.gguf_tokenizer import GgufTokenizer, check_tokenizer, read_tokenizer
from weftline_engine.own.models.llama_gguf import LlamaGguf, metadata_of
from weftline_engine.own.models.progress import StageDisplay
from weftline_engine.own.models.safetensors_file import total_bytes, write_bf16

# The names in a directory whose weights stay in a GGUF file (own/embedded/model/blocks_file.py).
INDEX, LINK = "blocks.json", "model.gguf"
# What transformers writes for a tokenizer that does not limit a text.
_ANY_LENGTH = int(1e30)


def convert(
    source: Path,
    target: Path,
    cache: Cache,
    progress: StageDisplay,
    *,
    direct: bool = False,
    owned: bool = False,
) -> None:
    """Write the model of the GGUF file `source` to the empty directory `target`.

    With `direct`, quantised weights stay in the file if all its types can be computed as they are.
    An `owned` file is moved into the directory then. Another file gets a link.
    Raises ModelUnavailable if the file is not a GGUF, is truncated, or is of an architecture that
    is not read.
    """
    model = LlamaGguf(source)
    check_tokenizer(model.metadata, source)
    if direct and model.computed_directly:
        _keep_blocks(model, target, progress)
    else:
        _write_bf16(model, target, cache, progress)
    limit, size = model.config["max_position_embeddings"], int(model.config["vocab_size"])
    _write_json(target / "config.json", model.config)
    found = _write_words(model.metadata, model.path, size, limit, target, progress)
    _write_json(target / "generation_config.json", _generation(model.config, found.ends))
    if owned and (target / LINK).is_symlink():
        source.replace(target / LINK)


def words(source: Path, target: Path, progress: StageDisplay) -> None:
    """Write the tokenizer and the chat template of a GGUF file of any architecture to the empty
    directory `target`. Raises ModelUnavailable if they cannot be read."""
    metadata = metadata_of(source)
    check_tokenizer(metadata, source)
    size = metadata.length("tokenizer.ggml.tokens")
    _write_words(metadata, source, size, _ANY_LENGTH, target, progress)


def _write_words(
    metadata: Metadata, source: Path, size: int, limit: int, target: Path, progress: StageDisplay
) -> GgufTokenizer:
    """Write the tokenizer, its settings and the template, if there is one."""
    with progress.stage("read the tokenizer", 1, "files") as meter:
        found = read_tokenizer(metadata, source, size)
        meter.at(1)
    settings = {
        **found.special,
        "clean_up_tokenization_spaces": False,
        "model_max_length": limit,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(target / "tokenizer_config.json", settings)
    found.tokenizer.save(str(target / "tokenizer.json"))
    if found.template is not None:
        (target / "chat_template.jinja").write_text(found.template, encoding="utf-8")
    return found


def _keep_blocks(model: LlamaGguf, target: Path, progress: StageDisplay) -> None:
    """Link the file, and write the index of its tensors."""
    kinds = " and ".join(model.kinds())
    with progress.stage(f"keep {kinds} as they are", None, "bytes") as meter:
        (target / LINK).symlink_to(model.path.absolute())
        _write_json(target / INDEX, {"file": LINK, "tensors": model.index()})
        meter.at(sum(model.kinds().values()))


def _write_bf16(model: LlamaGguf, target: Path, cache: Cache, progress: StageDisplay) -> None:
    cache.need(total_bytes(model.shapes), f"the conversion of {model.path.name}")
    odd = model.not_computed
    title = "convert to bf16" + (f", because {odd[0]} is {odd[1]}" if odd else "")
    with progress.stage(title, len(model.shapes), "tensors") as meter:

        def counted() -> Iterator[tuple[str, Any]]:
            for done, weight in enumerate(model.weights()):
                yield weight
                meter.at(done + 1)

        write_bf16(target / "model.safetensors", model.shapes, counted())


def _generation(config: dict[str, Any], ends: tuple[int, ...]) -> dict[str, Any]:
    """What generation_config.json says: the special tokens, and those that end an answer."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    found = {name: config[name] for name in names if name in config}
    if ends:
        found["eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
    return found


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
