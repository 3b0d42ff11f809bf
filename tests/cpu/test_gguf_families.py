"""A GGUF of every family answers like the checkpoint of which it was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.families import FAMILIES, ROPES
from tests.gguf_files import write_gguf
from tests.variants import load_model, prefill
from weftline_engine.own.models import resolve

SIZES = {
    "block_count": 3,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
WIDE = {"attention.key_length": 32, "attention.value_length": 32}
GEMMA = {**WIDE, "attention.sliding_window": 20}
LONG = FAMILIES["Phi-4-mini"]["rope_parameters"]
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama, biases everywhere": ("llama", {}, {}),
    "Llama 3.1": (
        "llama",
        {"factors": {"rope_freqs.weight": [1.0, 1.0, 1.0, 1.5, 4.0, 8.0, 8.0, 8.0]}},
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "attention_factor": 1.0,
                "long_factor": [1.0, 1.0, 1.0, 1.5, 4.0, 8.0, 8.0, 8.0],
                "short_factor": [1.0, 1.0, 1.0, 1.5, 4.0, 8.0, 8.0, 8.0],
                "original_max_position_embeddings": 512,
            }
        },
    ),
    "rope linear": (
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.freq_base": 500.0},
        {},
    ),
    "rope yarn": (
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.freq_base": 500.0,
        },
        {},
    ),
    "Qwen2, biases": ("qwen2", {}, {}),
    "Qwen3, head norms": ("qwen3", WIDE, {}),
    "Qwen3, experts": (
        "qwen3moe",
        {
            **WIDE,
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
        },
        {"mlp_only_layers": []},
    ),
    "Gemma 2, caps": (
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
        {"query_pre_attn_scalar": 32},
    ),
    "Gemma 3": (
        "gemma3",
        {
            **GEMMA,
            "block_count": 6,
            "attention.head_count_kv": 1,
            "rope.freq_base": 5000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        {
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "layer_types": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "Phi-4-mini": (
        "phi3",
        {
            "rope.dimension_count": 12,
            "rope.freq_base": 500.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.2247449,  # sqrt(1 + ln(512 / 64) / ln(64))
            "factors": {
                "rope_factors_long.weight": LONG["long_factor"],
                "rope_factors_short.weight": LONG["short_factor"],
            },
        },
        {},
    ),
    "SmolLM3": ("smollm3", {"block_count": 5, "rope.freq_base": 2000000.0}, {}),
    "Granite 3": (
        "granite",
        {
            "attention.scale": 0.2,
            "embedding_scale": 3.0,
            "residual_scale": 0.5,
            "logit_scale": 2.0,
        },
        {},
    ),
    "LFM2, convolutions": (
        "lfm2",
        {
            "block_count": 4,
            "attention.head_count_kv": [0, 0, 2, 0],
            "shortconv.l_cache": 3,
            "rope.freq_base": 1000000.0,
        },
        {"block_auto_adjust_ff_dim": False, "norm_eps": 1e-6},
    ),
    "OLMo 2": ("olmo2", {}, {}),
    "OLMo 3": (
        "olmo2",
        {
            "block_count": 4,
            "attention.sliding_window": 20,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.freq_base": 500.0,
        },
        {
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 500.0,
                    "original_max_position_embeddings": 64,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "OLMo 3, stated layers": (
        "olmo2",
        {
            "attention.sliding_window": 20,
            "attention.sliding_window_pattern": [False, True, True],
        },
        {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}


ALL = {**FAMILIES, **ROPES}


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_answers_like_its_checkpoint(
    name: str, tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    """The weights are bfloat16 numbers, so the conversion changes none of them. Both compute in
    float32, we from the GGUF and transformers from the checkpoint."""
    architecture, metadata, changes = CASES[name]
    settings = {
        **ALL.get(name.removesuffix(", stated layers"), {}),
        "rms_norm_eps": 1e-6,
        **changes,
    }
    directory = tiny_llama(tmp_path / "model", **settings)
    weights = directory / "model.safetensors"
    save_file(
        {name: t.bfloat16() for name, t in load_file(weights).items()}, weights, {"format": "pt"}
    )
    write_gguf(
        directory,
        tmp_path / "model.gguf",
        architecture,
        {
            (key if key == "factors" else f"{architecture}.{key}"): value
            for key, value in {**SIZES, **metadata}.items()
        },
    )
    tokens = torch.randint(0, 256, (75,), generator=torch.Generator().manual_seed(1))
    reference = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    decoder = load_model(resolve(str(tmp_path / "model.gguf"), home=tmp_path), torch.float32)
    torch.testing.assert_close(prefill(decoder, tokens, [75]), expected, atol=2e-4, rtol=1e-4)
