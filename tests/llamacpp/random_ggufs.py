"""Small GGUF files with random weights, of five families of models that llama-server serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
)

LLAMA = Path(__file__).parents[2] / ".venv-llama"  # where `make install-llama` builds
SIZES = {
    "vocab_size": 49_152,  # SmolLM2's
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def dense() -> PretrainedConfig:
    """Attention to all tokens, as Llama, SmolLM2 and Qwen3 have it."""
    return LlamaConfig(**SIZES, num_hidden_layers=2)


def delta_nets() -> PretrainedConfig:
    """A GatedDeltaNet's state beside attention (Qwen3.5)."""
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "head_dim": 32}
    return Qwen3_5TextConfig(
        **SIZES, num_hidden_layers=4, layer_types=kinds, full_attention_interval=4, **heads, **sizes
    )


def windows() -> PretrainedConfig:
    """Attention in windows beside attention to all tokens (Gemma 3)."""
    return Gemma3TextConfig(**SIZES, num_hidden_layers=6, head_dim=16, sliding_window=128)


def convolutions() -> PretrainedConfig:
    """A short convolution beside attention (LFM2)."""
    return Lfm2Config(**SIZES, num_hidden_layers=2, layer_types=["conv", "full_attention"])


def mambas() -> PretrainedConfig:
    """Mamba 2's state beside attention (Granite 4 H)."""
    mamba = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 1}
    experts = {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 128}
    return GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, layer_types=["mamba", "attention"], **mamba, **experts
    )


FAMILIES: Mapping[str, Callable[[], PretrainedConfig]] = {
    "dense": dense,
    "Qwen3.5": delta_nets,
    "Gemma 3": windows,
    "LFM2": convolutions,
    "Granite 4 H": mambas,
}


def gguf_of(
    config: PretrainedConfig,
    words: Path,
    folder: Path,
    template: str | None = None,
    kind: str = "f16",
) -> Path:
    """A GGUF file with random weights of that type and the tokenizer of `words`, by llama.cpp's
    converter. The chat template is that of the tokenizer, or `template`."""
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    if isinstance(config, GraniteMoeHybridConfig):
        _name_layers(folder / "config.json")
    settings: dict[str, Any] = json.loads((words / "tokenizer_config.json").read_text())
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_bytes((words / "tokenizer.json").read_bytes())
    path = folder / "model.gguf"
    script = LLAMA / "source/convert_hf_to_gguf.py"
    command = [sys.executable, str(script), str(folder), "--outfile", str(path)]
    if isinstance(config, Qwen3_5TextConfig):
        command.append("--no-mtp")  # it would look for layers that predict further tokens
    paths = {**os.environ, "PYTHONPATH": str(LLAMA / "lib")}
    subprocess.run(
        [*command, "--outtype", kind], check=True, capture_output=True, timeout=200, env=paths
    )
    return path


def _name_layers(path: Path) -> None:
    """Give Granite's layers of attention the name that the converter knows."""
    found = json.loads(path.read_text())
    names = {"full_attention": "attention", "linear_attention": "mamba"}
    found["layer_types"] = [names.get(one, one) for one in found["layer_types"]]
    path.write_text(json.dumps(found))
