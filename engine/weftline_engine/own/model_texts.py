"""The texts of a model's directory: chat template, special tokens and default sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weftline.contract.parameters import COMMON
from weftline_engine.own.embedded.model.config import read_json


def tokenizer_texts(directory: Path) -> dict[str, str]:
    """The chat template and special tokens; a token may be an object with its `content`."""
    raw = _read(directory / "tokenizer_config.json")
    texts = {}
    for key in ("chat_template", "bos_token", "eos_token"):
        value = raw.get(key) or ""
        if isinstance(value, dict):
            value = value.get("content") or ""
        if isinstance(value, list):  # several templates by name
            value = next((one["template"] for one in value if one["name"] == "default"), "")
        texts[key] = str(value)
    template = directory / "chat_template.jinja"
    if template.is_file():
        texts["chat_template"] = template.read_text(encoding="utf-8")
    return texts


def default_sampling(directory: Path) -> dict[str, float]:
    """The publisher's defaults of the parameters that have some."""
    raw = _read(directory / "generation_config.json")
    keys = [name for name, one in COMMON.items() if one.of_model]
    return {key: float(raw[key]) for key in keys if isinstance(raw.get(key), (int, float))}


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file. Raises ModelError."""
    return read_json(path) if path.is_file() else {}
