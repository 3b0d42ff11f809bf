"""Writes the config.json that the metadata of a GGUF file stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weftline_engine.models.gguf_architecture import Architecture
from weftline_engine.models.gguf_metadata import Metadata
from weftline_engine.models.name import ModelUnavailable

# Tensors of a GGUF that hold factors of the rotary embedding, and no weights.
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def config_of(
    metadata: Metadata, architecture: Architecture, stored: Mapping[str, Any]
) -> dict[str, Any]:
    """config.json of a file with these tensors. Raises ModelUnavailable and ValueError."""
    hidden, heads = metadata.number("embedding_length"), metadata.number("attention.head_count")
    size = metadata.number("attention.key_length", hidden // heads)
    if metadata.number("attention.value_length", size) != size:
        raise ModelUnavailable("its values have another size than its keys, which is not supported")
    ids = {f"{name}_token_id": metadata.token(f"{found}_token_id") for name, found in _IDS.items()}
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": "bfloat16",
        "vocab_size": metadata.length("tokenizer.ggml.tokens"),
        "hidden_size": hidden,
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": metadata.real("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": "blk.0.attn_q.bias" in stored,
        "mlp_bias": "blk.0.ffn_up.bias" in stored,
        **_rope(metadata, stored, size),
        **architecture.keys(metadata),
        **{name: value for name, value in ids.items() if value is not None},
    }


_IDS = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _rope(metadata: Metadata, stored: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The entries of the rotary embedding."""
    turned = metadata.number("rope.dimension_count", size)
    found: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.real("rope.freq_base", 10000.0),
    }
    if turned != size:
        found["partial_rotary_factor"] = turned / size
    kind = metadata.word("rope.scaling.type", "none")
    factors = {name: stored[name].data.astype(float).tolist() for name in FACTORS if name in stored}
    if factors:
        # Llama 3.1 has one list for all contexts, and Phi two.
        long, short = (factors.get(name) for name in FACTORS[1:])
        found |= {
            "rope_type": "longrope",
            "long_factor": long or factors.get(FACTORS[0]) or short,
            "short_factor": short or factors.get(FACTORS[0]) or long,
            "attention_factor": metadata.real("rope.scaling.attn_factor", 1.0),
        }
    elif kind in ("linear", "yarn"):
        found |= {"rope_type": kind, "factor": metadata.real("rope.scaling.factor")}
        if kind == "yarn":
            original = metadata.number("rope.scaling.original_context_length")
            found["original_max_position_embeddings"] = original
    elif kind not in ("none", "longrope"):
        raise ModelUnavailable(
            f"its rope.scaling.type {kind[:40]!r} cannot be read from a GGUF: use the model's "
            "Hugging Face directory"
        )
    if metadata.architecture != "gemma3":
        return {"rope_parameters": found}
    # A GGUF has no key for the theta of Gemma's sliding layers, which llama.cpp knows.
    local = {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_parameters": {"full_attention": found, "sliding_attention": local}}
