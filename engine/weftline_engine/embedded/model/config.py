"""The configuration of a model, read from the config.json of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(Exception):
    """The model cannot be run; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: plain if `factor` is 1, else with Llama 3.1's scaling."""

    theta: float
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes of a decoder's attention and MLP."""

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    context_limit: int
    tied: bool
    eos: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Llama, and models that differ from it in a detail."""

    rope: Rope
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool  # RMSNorm of every query and key head before the rotary embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig(ModelConfig):
    """OPT: learned positions, LayerNorm, ReLU."""

    embedding: int  # width of the token embedding, which 350M projects to `hidden`
    bias: bool
    norm_first: bool  # before attention and MLP; after them in 350M
    last_norm: bool


LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ARCHITECTURES = (*LLAMA_LIKE, "OPTForCausalLM")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises ModelError if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} holds no {path.name}: give a model directory") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object")
    return value


def read_config(directory: Path) -> ModelConfig:
    """Read and check config.json (and the stop tokens of generation_config.json)."""
    raw = read_json(directory / "config.json")
    names = raw.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise ModelError(
            f"architecture {names[0]} is not supported; this engine runs {', '.join(ARCHITECTURES)}"
        )
    generation = directory / "generation_config.json"
    stops = read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = stops if stops is not None else raw.get("eos_token_id")
    read = _llama if names[0] in LLAMA_LIKE else _opt
    try:
        return read(names[0], raw, _ids(eos))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{directory / 'config.json'} lacks or misstates {error}") from None


def _only(name: str, raw: Mapping[str, Any], **values: Any) -> None:
    """Raise ModelError if one of these keys has another value."""
    for key, only in values.items():
        if raw.get(key, only) != only:
            raise ModelError(f"{key} {raw[key]!r} is not supported in a {name}; only {only!r} is")


def _ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (int(value),)


def _llama(name: str, raw: Mapping[str, Any], eos: tuple[int, ...]) -> LlamaConfig:
    _only(name, raw, hidden_act="silu", attention_bias=False, mlp_bias=False)
    heads = int(raw["num_attention_heads"])
    return LlamaConfig(
        architecture=name,
        vocabulary=int(raw["vocab_size"]),
        hidden=int(raw["hidden_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_size=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        mlp=int(raw["intermediate_size"]),
        context_limit=_context_limit(raw),
        rope=_rope(raw),
        norm_eps=float(raw["rms_norm_eps"]),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=name == "Qwen2ForCausalLM",
        qk_norm=name == "Qwen3ForCausalLM",
        eos=eos,
    )


def _opt(name: str, raw: Mapping[str, Any], eos: tuple[int, ...]) -> OptConfig:
    _only(name, raw, activation_function="relu", layer_norm_elementwise_affine=True)
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    first = bool(raw.get("do_layer_norm_before", True))
    return OptConfig(
        architecture=name,
        vocabulary=int(raw["vocab_size"]),
        hidden=hidden,
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        mlp=int(raw["ffn_dim"]),
        context_limit=int(raw["max_position_embeddings"]),
        tied=bool(raw.get("tie_word_embeddings", True)),
        embedding=int(raw.get("word_embed_proj_dim") or hidden),
        bias=bool(raw.get("enable_bias", True)),
        norm_first=first,
        last_norm=first and not raw.get("_remove_final_layer_norm", False),
        eos=eos,
    )


def _context_limit(raw: Mapping[str, Any]) -> int:
    """The positions that the model was trained for, but at most its sliding window. Up to the
    length of the window, its attention is plain attention."""
    limit = int(raw["max_position_embeddings"])
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    return limit if window is None else min(limit, int(window))


def _rope(raw: Mapping[str, Any]) -> Rope:
    """Newer files have `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(found.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise ModelError(f"rope type {kind!r} is not supported; only default and llama3 are")
    return Rope(
        theta,
        float(found["factor"]),
        float(found["low_freq_factor"]),
        float(found["high_freq_factor"]),
        int(found["original_max_position_embeddings"]),
    )
