"""The architectures of GGUF files that are read: their tensors' names, and their own metadata.

A letter stands for a dimension: C hidden, Q all query heads, K all KV heads, H one head, M MLP
channels, S stacked queries, keys and values, T two MLPs stacked, V vocabulary, E experts, X the
channels of an expert, G gates and inputs of a convolution, L its taps. A tensor of three dimensions
holds the matrices of all experts. The name of one has the expert's number in place of the star.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.name import ModelUnavailable

MOST_EXPERTS = 1024  # which the C kernels run

# By the name in a GGUF: the name in a Hugging Face checkpoint, and the dimensions.
Tensors = Mapping[str, tuple[str, str]]

_MLP: Tensors = {
    "ffn_gate": ("mlp.gate_proj", "MC"),
    "ffn_up": ("mlp.up_proj", "MC"),
    "ffn_down": ("mlp.down_proj", "CM"),
}
_MATRICES: Tensors = {
    "attn_q": ("self_attn.q_proj", "QC"),
    "attn_k": ("self_attn.k_proj", "KC"),
    "attn_v": ("self_attn.v_proj", "KC"),
    "attn_output": ("self_attn.o_proj", "CQ"),
    **_MLP,
}
_LLAMA: Tensors = {
    **_MATRICES,
    "attn_norm": ("input_layernorm", "C"),
    "ffn_norm": ("post_attention_layernorm", "C"),
}
_HEAD_NORMS: Tensors = {
    "attn_q_norm": ("self_attn.q_norm", "H"),
    "attn_k_norm": ("self_attn.k_norm", "H"),
}
_GEMMA: Tensors = {
    **_MATRICES,
    "attn_norm": ("input_layernorm", "C"),
    "post_attention_norm": ("post_attention_layernorm", "C"),
    "ffn_norm": ("pre_feedforward_layernorm", "C"),
    "post_ffw_norm": ("post_feedforward_layernorm", "C"),
}
_OLMO: Tensors = {
    **_MATRICES,
    "attn_q_norm": ("self_attn.q_norm", "Q"),
    "attn_k_norm": ("self_attn.k_norm", "K"),
    "post_attention_norm": ("post_attention_layernorm", "C"),
    "post_ffw_norm": ("post_feedforward_layernorm", "C"),
}
_QWEN_EXPERTS: Tensors = {
    **{name: found for name, found in _LLAMA.items() if found not in _MLP.values()},
    **_HEAD_NORMS,
    "ffn_gate_inp": ("mlp.gate", "EC"),
    "ffn_gate_exps": ("mlp.experts.*.gate_proj", "EXC"),
    "ffn_up_exps": ("mlp.experts.*.up_proj", "EXC"),
    "ffn_down_exps": ("mlp.experts.*.down_proj", "ECX"),
}
_PHI: Tensors = {
    "attn_norm": ("input_layernorm", "C"),
    "attn_qkv": ("self_attn.qkv_proj", "SC"),
    "attn_output": ("self_attn.o_proj", "CQ"),
    "ffn_norm": ("post_attention_layernorm", "C"),
    "ffn_up": ("mlp.gate_up_proj", "TC"),
    "ffn_down": ("mlp.down_proj", "CM"),
}
_LFM2: Tensors = {
    "attn_norm": ("operator_norm", "C"),
    "ffn_norm": ("ffn_norm", "C"),
    "ffn_gate": ("feed_forward.w1", "MC"),
    "ffn_up": ("feed_forward.w3", "MC"),
    "ffn_down": ("feed_forward.w2", "CM"),
}
_LFM2_LAYERS: Mapping[str, Tensors] = {
    "full_attention": {
        **{name: found for name, found in _MATRICES.items() if found not in _MLP.values()},
        "attn_output": ("self_attn.out_proj", "CQ"),
        "attn_q_norm": ("self_attn.q_layernorm", "H"),
        "attn_k_norm": ("self_attn.k_layernorm", "H"),
    },
    "conv": {
        "shortconv.in_proj": ("conv.in_proj", "GC"),
        "shortconv.conv": ("conv.conv", "CL"),
        "shortconv.out_proj": ("conv.out_proj", "CC"),
    },
}

Biases = tuple[tuple[str, ...], ...]

_QKV = ("attn_q", "attn_k", "attn_v")
_ALL_BIASES: Biases = ((*_QKV, "attn_output"), ("ffn_gate", "ffn_up", "ffn_down"))


def _plain(metadata: Metadata) -> dict[str, Any]:
    return {"hidden_act": "silu"}


def _granite(metadata: Metadata) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "attention_multiplier": metadata.real("attention.scale"),
        "embedding_multiplier": metadata.real("embedding_scale"),
        "residual_multiplier": metadata.real("residual_scale"),
        "logits_scaling": metadata.real("logit_scale"),
    }


def _windows(metadata: Metadata) -> dict[str, Any]:
    """The window of the layers that slide, and which layers these are, if the file says so."""
    found: dict[str, Any] = {"sliding_window": metadata.number("attention.sliding_window")}
    layers = metadata.number("block_count")
    slides = metadata.pattern("attention.sliding_window_pattern", layers)
    if slides is not None:
        kinds = {True: "sliding_attention", False: "full_attention"}
        found["layer_types"] = [kinds[one] for one in slides]
    return found


def _olmo(metadata: Metadata) -> dict[str, Any]:
    """OLMo 3 is an OLMo 2 with windows."""
    if metadata.number("attention.sliding_window", 0) == 0:
        return _plain(metadata)
    family = {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}
    return {**_plain(metadata), **family, **_windows(metadata)}


def _gemma(largest: int) -> Callable[[Metadata], dict[str, Any]]:
    """The keys of a Gemma, whose largest model has `largest` layers and scales scores by the hidden
    size of a head, as llama.cpp knows without a key."""

    def keys(metadata: Metadata) -> dict[str, Any]:
        heads, hidden = metadata.number("attention.head_count"), metadata.number("embedding_length")
        size = metadata.number("attention.key_length")
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": (
                hidden // heads if metadata.number("block_count") == largest else size
            ),
            **_windows(metadata),
            "attn_logit_softcapping": metadata.real("attn_logit_softcapping", 0.0) or None,
            "final_logit_softcapping": metadata.real("final_logit_softcapping", 0.0) or None,
        }

    return keys


def _experts(metadata: Metadata) -> dict[str, Any]:
    """A GGUF does not say that the shares of a row's experts add up to 1. In llama.cpp they do."""
    count, used = metadata.number("expert_count"), metadata.number("expert_used_count")
    if not used <= count <= MOST_EXPERTS:
        raise ModelUnavailable(
            f"it uses {used} of {count} experts, and at most {MOST_EXPERTS} are read: take another "
            "model"
        )
    return {
        "hidden_act": "silu",
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": metadata.number("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _lfm2(metadata: Metadata) -> dict[str, Any]:
    """A layer without heads of keys has a convolution."""
    attends = metadata.has("attention.head_count_kv", metadata.number("block_count"))
    return {
        "hidden_act": "silu",
        "norm_eps": metadata.real("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_bias": False,
        "conv_L_cache": metadata.number("shortconv.l_cache"),
        "layer_types": ["full_attention" if one else "conv" for one in attends],
    }


def _phi(metadata: Metadata) -> dict[str, Any]:
    original = metadata.number("rope.scaling.original_context_length", 0)
    return {
        "hidden_act": "silu",
        "sliding_window": metadata.number("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": original or metadata.number("context_length"),
    }


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of GGUF, and what it is called in a config.json.

    `layers` are the tensors that only layers of a type have. `last` is the norm behind the last
    layer. Of each group of `biases`, a file has all or none. llama.cpp reorders the rows of queries
    and keys where `permuted`, and stores the weights of norms with `offset` added. `keys` are
    entries of config.json that only this architecture has.
    """

    name: str
    model_type: str
    tensors: Tensors = field(default_factory=lambda: _LLAMA)
    layers: Mapping[str, Tensors] = field(default_factory=dict)
    last: tuple[str, str] = ("output_norm.weight", "model.norm.weight")
    biases: Biases = _ALL_BIASES
    permuted: bool = False
    offset: float = 0.0
    keys: Callable[[Metadata], dict[str, Any]] = _plain


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "llama", permuted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", biases=(_QKV,)),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", {**_LLAMA, **_HEAD_NORMS}),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", _QWEN_EXPERTS, biases=(_QKV,), keys=_experts
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", "gemma2", _GEMMA, offset=1.0, keys=_gemma(largest=46)
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {**_GEMMA, **_HEAD_NORMS},
        offset=1.0,
        keys=_gemma(largest=62),
    ),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _PHI, biases=(), keys=_phi),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", permuted=True),
    "granite": Architecture("GraniteForCausalLM", "granite", permuted=True, keys=_granite),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2", _OLMO, keys=_olmo),
    "lfm2": Architecture(
        "Lfm2ForCausalLM",
        "lfm2",
        _LFM2,
        _LFM2_LAYERS,
        ("token_embd_norm.weight", "model.embedding_norm.weight"),
        biases=(),
        keys=_lfm2,
    ),
}
