"""Tiny models of every family, as the settings of `tiny_llama`: what each does unlike Llama.

The windows are shorter than the prompts of the tests.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)


def _rope(kind: str, **words: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **words}}


_LONG = {
    "long_factor": [1.0 + i for i in range(6)],
    "short_factor": [1.0 + i / 9 for i in range(6)],
}

ROPES: dict[str, dict[str, Any]] = {
    "rope llama3": _rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "rope linear": _rope("linear", factor=4.0),
    "rope yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=64),
    "rope yarn, stated": _rope(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        beta_fast=16.0,
        beta_slow=2.0,
        attention_factor=1.25,
        truncate=False,
    ),
}

_GEMMA: dict[str, Any] = {
    "head_dim": 32,
    "sliding_window": 20,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama, biases everywhere": {"family": LlamaConfig, "attention_bias": True, "mlp_bias": True},
    "Mistral, windows": {"family": MistralConfig, "sliding_window": 20},
    "Mistral, no window": {"family": MistralConfig, "sliding_window": None, "head_dim": 32},
    "Qwen2, biases": {"family": Qwen2Config},
    "Qwen2, last layers slide": {
        "family": Qwen2Config,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "Qwen3, head norms": {"family": Qwen3Config, "head_dim": 32},
    "Qwen3, biases": {"family": Qwen3Config, "head_dim": 32, "attention_bias": True},
    "Qwen3, experts": {
        "family": Qwen3MoeConfig,
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "Gemma 2, caps": {
        "family": Gemma2Config,
        **_GEMMA,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
    },
    "Gemma 3": {
        "family": Gemma3TextConfig,
        **_GEMMA,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_key_value_heads": 1,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "Phi-3, windows": {"family": Phi3Config, "sliding_window": 20, "pad_token_id": 0},
    "Phi-4-mini": {
        "family": Phi3Config,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.75,
        **_rope("longrope", partial_rotary_factor=0.75, **_LONG),
    },
    "Phi-4-mini, short": {
        "family": Phi3Config,
        "pad_token_id": 0,
        "original_max_position_embeddings": 512,
        "partial_rotary_factor": 0.75,
        **_rope("longrope", partial_rotary_factor=0.75, **_LONG),
    },
    "SmolLM3": {
        "family": SmolLM3Config,
        "num_hidden_layers": 5,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "SmolLM3, windows": {
        "family": SmolLM3Config,
        "pad_token_id": 0,
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 20,
        "attention_bias": True,
    },
    "Granite 3": {"family": GraniteConfig, **_GRANITE, "tie_word_embeddings": True},
    "Granite 4, dense": {
        "family": GraniteMoeHybridConfig,
        **_GRANITE,
        "layer_types": ["attention"] * 3,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "rope",
    },
    "Granite 4, no positions": {
        "family": GraniteMoeHybridConfig,
        **_GRANITE,
        "layer_types": ["attention"] * 3,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
    },
    "LFM2, convolutions": {
        "family": Lfm2Config,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "tie_word_embeddings": True,
        "block_multiple_of": 16,
    },
    "LFM2, four taps, wide tokens": {
        "family": Lfm2Config,
        "num_hidden_layers": 3,
        "hidden_size": 80,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False,
    },
    "OLMo 2": {"family": Olmo2Config, "pad_token_id": 0},
    "OLMo 3": {
        "family": Olmo3Config,
        "pad_token_id": 0,
        "sliding_window": 20,
        "num_hidden_layers": 4,
    },
}
