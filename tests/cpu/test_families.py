"""config.json as publishers wrote it: what the table of families makes of old and new keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weftline_engine.own.embedded.model.config import (
    Activation,
    LayerKind,
    LinearScaling,
    LlamaConfig,
    LongRope,
    MatrixBiases,
    Rope,
)
from weftline_engine.own.embedded.model.families import read_config

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-06,
}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """The config of an architecture with these keys."""

    def of(architecture: str, **keys: Any) -> LlamaConfig:
        raw = {**SIZES, "architectures": [architecture], **keys}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        found = read_config(tmp_path)
        assert isinstance(found, LlamaConfig)
        return found

    return of


def test_gemma_3_of_old_names_its_ropes_by_two_thetas(read: Any) -> None:
    """Five of six layers slide, with a theta of their own. The scaling is that of the sixth."""
    found = read(
        "Gemma3ForCausalLM",
        head_dim=256,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=256,
        rope_theta=1000000,
        rope_local_base_freq=10000,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        sliding_window=512,
        sliding_window_pattern=6,
    )
    slides = LayerKind(Rope(10000.0), 512)
    full = LayerKind(Rope(1000000.0, scaling=LinearScaling(8.0)))
    assert found.kinds == (*(slides,) * 5, full) * 2
    assert (found.activation, found.tied, found.score_scale) == (Activation.GELU_TANH, True, 1 / 16)
    assert found.scales.embedding == 1152**0.5


def test_gemma_3_with_images_states_little_of_its_text(read: Any) -> None:
    """The 4B's text_config leaves out heads, vocabulary and context."""
    found = read(
        "Gemma3ForConditionalGeneration",
        text_config={
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        eos_token_id=[1, 106],
    )
    assert (found.heads, found.kv_heads, found.head_size, found.hidden) == (8, 4, 256, 2560)
    assert (found.vocabulary, found.context_limit, found.eos) == (262208, 131072, (1, 106))
    full = LayerKind(Rope(1000000.0, scaling=LinearScaling(8.0)))
    assert [i for i, kind in enumerate(found.kinds) if kind == full] == [5, 11, 17, 23, 29]
    assert found.window == 1024


def test_a_window_that_config_json_does_not_use_is_none(read: Any) -> None:
    """Qwen2.5 states a window, and use_sliding_window is false or missing."""
    keys = {"sliding_window": 4096, "max_window_layers": 8, "rope_theta": 1000000.0}
    plain = read("Qwen2ForCausalLM", **keys)
    assert set(plain.kinds) == {LayerKind(Rope(1000000.0))}
    assert plain.biases == MatrixBiases(qkv=True)
    assert plain.context_limit == 131072
    used = read("Qwen2ForCausalLM", use_sliding_window=True, **keys)
    assert [kind.window for kind in used.kinds] == [None] * 8 + [4096] * 4


def test_every_layer_of_mistral_slides(read: Any) -> None:
    """The context is longer than the window, unless the model was trained for less."""
    found = read("MistralForCausalLM", sliding_window=4096)
    assert (found.window, found.context_limit) == (4096, 131072)
    short = read("MistralForCausalLM", sliding_window=4096, max_position_embeddings=4096)
    assert (short.window, short.context_limit) == (None, 4096)


def test_phi_4_mini_turns_a_part_of_a_head(read: Any) -> None:
    """96 of 128 numbers, each pair slower by its long factor."""
    found = read(
        "Phi3ForCausalLM",
        num_attention_heads=9,
        num_key_value_heads=3,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "short_factor": [1] * 48, "long_factor": [32.5] * 48},
        sliding_window=262144,
        attention_bias=True,
    )
    (kind,) = set(found.kinds)
    assert kind.rope == Rope(10000.0, 96, LongRope((32.5,) * 48), (1 + 5 / 12) ** 0.5)
    assert (kind.window, found.biases) == (None, MatrixBiases())


def test_lfm2_of_old_has_names_of_its_own(read: Any) -> None:
    """The first files of the 350M state which layers have attention, and channels of the MLP of
    which it has two thirds. A convolution keeps the numbers of two layers of the cache."""
    found = read(
        "Lfm2ForCausalLM",
        hidden_size=1024,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        norm_eps=1e-05,
        block_ff_dim=6656,
        block_ffn_dim_multiplier=1.0,
        block_multiple_of=256,
        conv_L_cache=3,
        conv_bias=False,
        full_attn_idxs=[2],
        theta=1000000.0,
        tie_embedding=True,
    )
    short = LayerKind(None, taps=3)
    assert found.kinds == (short, short, LayerKind(Rope(1000000.0)), short)
    assert (found.mlp, found.tied, found.norm_eps, found.window) == (4608, True, 1e-05, None)
    assert [found.cached(layer) for layer in (1, 2)] == [range(2, 4), range(4, 5)]
    assert (found.cache_layers, found.sliding) == (7, dict.fromkeys((0, 1, 2, 3, 5, 6), 3))


def test_smollm3_has_no_rope_in_every_fourth_layer(read: Any) -> None:
    """no_rope_layers holds 1 where there is a rope."""
    found = read("SmolLM3ForCausalLM", no_rope_layers=[1, 1, 1, 0] * 3, rope_theta=5000000.0)
    assert found.kinds[:4] == (LayerKind(Rope(5000000.0)),) * 3 + (LayerKind(None),)
    assert read("SmolLM3ForCausalLM", rope_theta=5000000.0).kinds == found.kinds
