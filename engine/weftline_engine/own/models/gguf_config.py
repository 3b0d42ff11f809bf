"""Writes the config.json that the metadata of a GGUF file stands for."""

from __future__ import annotations

from typing import Any

from gguf import GGMLQuantizationType

from weftline_engine.own.models.gguf_architecture import Architecture
from weftline_engine.own.models.gguf_header import GgufHeader
from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.name import ModelUnavailable

# Tensors of a GGUF that hold factors of the rotary embedding, and no weights.
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def config_of(metadata: Metadata, architecture: Architecture, header: GgufHeader) -> dict[str, Any]:
    """config.json of a file. Raises ModelUnavailable."""
    stored = header.tensors
    hidden, heads = metadata.number("embedding_length"), metadata.number("attention.head_count")
    size = metadata.number("attention.key_length", hidden // heads)
    if metadata.number("attention.value_length", size) != size:
        raise ModelUnavailable("its values have another size than its keys, which is not supported")
    kv_heads = metadata.number("attention.head_count_kv", heads)
    if heads % kv_heads or size % 2:
        raise ModelUnavailable(
            f"its {heads} heads of {size} numbers cannot share {kv_heads} heads of keys: fetch it "
            "again"
        )
    layers = metadata.number("block_count")
    if layers > len(stored):
        raise ModelUnavailable(f"it states {layers} layers and holds {len(stored)} tensors")
    ids = {f"{name}_token_id": metadata.token(f"{found}_token_id") for name, found in _IDS.items()}
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": "bfloat16",
        "vocab_size": metadata.length("tokenizer.ggml.tokens"),
        "hidden_size": hidden,
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": metadata.real("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": "blk.0.attn_q.bias" in stored,
        "mlp_bias": "blk.0.ffn_up.bias" in stored,
        **_rope(metadata, header, size),
        **architecture.keys(metadata),
        **{name: value for name, value in ids.items() if value is not None},
    }


def _factors(header: GgufHeader, name: str) -> list[float]:
    """The numbers of one of these tensors."""
    tensor = header.tensors[name]
    if tensor.kind is not GGMLQuantizationType.F32 or len(tensor.shape) != 1:
        raise ModelUnavailable(f"its {name} is no list of float32: fetch it again")
    return [float(value) for value in header.values_of(tensor)]


_IDS = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _rope(metadata: Metadata, header: GgufHeader, size: int) -> dict[str, Any]:
    """The entries of the rotary embedding."""
    turned = metadata.number("rope.dimension_count", size)
    if turned > size or turned % 2:
        raise ModelUnavailable(f"it turns {turned} of the {size} numbers of a head: fetch it again")
    found: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.real("rope.freq_base", 10000.0),
    }
    if turned != size:
        found["partial_rotary_factor"] = turned / size
    kind = metadata.word("rope.scaling.type", "none")
    factors = {name: _factors(header, name) for name in FACTORS if name in header.tensors}
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
    # Files without the theta of the sliding layers have the one that llama.cpp takes.
    theta = {"gemma3": 10000.0, "olmo2": found["rope_theta"]}.get(metadata.architecture)
    if theta is None:
        return {"rope_parameters": found}
    local = {"rope_type": "default", "rope_theta": metadata.real("rope.freq_base_swa", theta)}
    return {"rope_parameters": {"full_attention": found, "sliding_attention": local}}
