"""Writes a small Hugging Face model as a GGUF file, with the names that the library gguf knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from transformers.convert_slow_tokenizer import bytes_to_unicode

# The architectures of which llama.cpp permutes the rows of queries and keys, and those whose norms
# it stores with 1 added.
PERMUTED = ("llama", "smollm3", "granite")
OFFSET = ("gemma2", "gemma3")


def write_gguf(directory: Path, path: Path, architecture: str, metadata: dict[str, Any]) -> None:
    """Write the model of `directory`, of 256 tokens: 255 bytes and "ab"."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        match value:
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
            case float():
                writer.add_float32(key, value)
            case int():
                writer.add_uint32(key, value)
    writer.add_tokenizer_model("gpt2")
    characters = bytes_to_unicode()
    writer.add_token_list([*(characters[byte] for byte in range(255)), "ab"])
    writer.add_token_types([1] * 256)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    tensors = _with_experts_stacked(load_file(directory / "model.safetensors"))
    heads = {
        "attn_q": metadata[f"{architecture}.attention.head_count"],
        "attn_k": metadata[f"{architecture}.attention.head_count_kv"],
    }
    if architecture == "lfm2":  # converters leave the middle dimension of (C, 1, taps) out
        tensors = {name: one.flatten(1) if one.dim() > 1 else one for name, one in tensors.items()}
    for name, source in _sources(architecture, tensors).items():
        values = tensors[name]
        kind = source.split(".")[-2]
        if architecture in PERMUTED and kind in heads:
            values = _permuted(values, heads[kind])
        if architecture in OFFSET and "norm" in kind:
            values = values.float() + 1
        writer.add_tensor(source, values.float().contiguous().numpy())
    for name, factors in (metadata.get("factors") or {}).items():
        writer.add_tensor(name, np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _with_experts_stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The matrices of all experts of a layer as one tensor, as llama.cpp's converter does."""
    found: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        found.setdefault(re.sub(r"(experts)\.\d+", r"\1", name), []).append(tensors[name])
    return {
        name: torch.stack(them) if ".experts." in name else them[0] for name, them in found.items()
    }


def _sources(architecture: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """The names in a GGUF, by those in the checkpoint."""
    kind = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, 64)
    return {name: f"{names.get_name(name, try_suffixes=('.weight', '.bias'))}" for name in tensors}


def _permuted(values: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of rows: of each head, the first row of the lower half, the first of the
    upper half, the second of the lower half, and so on."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
