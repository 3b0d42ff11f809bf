"""Checks that a Hugging Face directory is complete before an engine loads it, without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from weftline_engine.own.models.name import ModelUnavailable

_JSON_LIMIT = 64 << 20  # bytes; the largest tokenizer.json in use has about 35 MB
_HEADER_LIMIT = 100 << 20  # bytes; the safetensors format sets this limit


def validate(directory: Path) -> None:
    """Raise ModelUnavailable unless config, weights and tokenizer exist and look complete.

    Weights are one safetensors file, or shards with an index. Each must be as long as its header
    says. Or they are a GGUF file with an index of its tensors. Pickled weights are refused, because
    loading one runs code.
    """
    config = _read_json(directory / "config.json", "a config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelUnavailable(f"{directory / 'config.json'} names no model_type: not a model's")
    if not (directory / "blocks.json").is_file():
        for weights in _weight_files(directory):
            _check_length(weights)
    validate_words(directory)


def validate_words(directory: Path) -> None:
    """Raise ModelUnavailable unless the tokenizer exists and looks complete."""
    _read_json(directory / "tokenizer.json", "a tokenizer.json (the fast tokenizer's one file)")


def chat_template(directory: Path) -> str | None:
    """Return the publisher's chat template (Jinja text), or None if the model has none."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return None
    template = _read_json(path, "a tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several templates with names
        defaults = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = defaults[0].get("template") if defaults else None
    return template if isinstance(template, str) else None


def _weight_files(directory: Path) -> list[Path]:
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt*"))
        hint = "; pickled weights are not loaded, convert them" if pickled else ""
        raise ModelUnavailable(f"{directory} has no model.safetensors{hint}")
    shards = _read_json(index, "an index of its shards").get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelUnavailable(f"{index} has no weight_map: fetch the model again")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelUnavailable(f"{index} names {name[:80]!r}, which is not a file beside it")
        if not (directory / name).is_file():
            raise ModelUnavailable(f"{directory} lacks {name}: fetch the model again")
    return [directory / name for name in names]


def _check_length(path: Path) -> None:
    """Check a file's size: 8 bytes of header length, a JSON header, then the tensors."""
    size = path.stat().st_size
    truncated = ModelUnavailable(f"{path} is truncated or not a safetensors file: fetch it again")
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise truncated
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, _HEADER_LIMIT):
            raise truncated
        try:
            header = json.loads(file.read(length))
            ends = [
                int(tensor["data_offsets"][1])
                for name, tensor in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise truncated from error
    if not ends or size != 8 + length + max(ends):
        raise truncated


def _read_json(path: Path, what: str) -> dict[str, Any]:
    if not path.is_file():
        raise ModelUnavailable(f"{path.parent} has no {path.name}: a model directory has {what}")
    with path.open("rb") as file:
        text = file.read(_JSON_LIMIT + 1)
    try:
        value = json.loads(text) if len(text) <= _JSON_LIMIT else None
    except (ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path} is truncated or not JSON: fetch it again") from error
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} is not a JSON object: fetch it again")
    return value
