"""The families of models that run here: a table of how each differs from Llama.

A row names keys of config.json and tensors of the checkpoint. The decoders read the result, a
LlamaConfig, and know no family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weftline_engine.own.embedded.model.config import (
    Activation,
    Experts,
    HeadNorm,
    LayerKind,
    LlamaConfig,
    MatrixBiases,
    MatrixNames,
    ModelConfig,
    ModelError,
    Norms,
    Rope,
    Scales,
    read_json,
)
from weftline_engine.own.embedded.model.rope_angles import read_rope

Raw = Mapping[str, Any]

FULL, SLIDING, CONVOLUTION = "full_attention", "sliding_attention", "conv"


def _every_layer_full(raw: Raw, layer: int) -> str:
    return FULL


def _every_layer_slides(raw: Raw, layer: int) -> str:
    return SLIDING


def _last_layers_slide(raw: Raw, layer: int) -> str:
    return SLIDING if layer >= int(raw.get("max_window_layers", 28)) else FULL


def _one_full_in(count: int) -> Callable[[Raw, int], str]:
    """Every `count`-th layer is full; `sliding_window_pattern` may say another number."""

    def kind(raw: Raw, layer: int) -> str:
        return SLIDING if (layer + 1) % int(raw.get("sliding_window_pattern") or count) else FULL

    return kind


def _one_in_four_without_rope(raw: Raw, layer: int) -> bool:
    """SmolLM3's `no_rope_layers` holds 1 for the layers that have a rope."""
    found = raw.get("no_rope_layers")
    interval = int(raw.get("no_rope_layer_interval") or 4)
    return bool(found[layer]) if found is not None else (layer + 1) % interval != 0


def _scales_of_granite(raw: Raw) -> Scales:
    return Scales(
        embedding=float(raw.get("embedding_multiplier") or 1),
        residual=float(raw.get("residual_multiplier") or 1),
        scores=float(raw.get("attention_multiplier") or 1),
        logits=1 / float(raw.get("logits_scaling") or 1),
    )


def _scales_of_gemma(raw: Raw) -> Scales:
    scalar, hidden = raw.get("query_pre_attn_scalar") or 256, int(raw["hidden_size"])
    caps = raw.get("attn_logit_softcapping"), raw.get("final_logit_softcapping")
    score_cap, logit_cap = (None if cap is None else float(cap) for cap in caps)
    return Scales(
        embedding=hidden**0.5,
        scores=float(scalar) ** -0.5,
        score_cap=score_cap,
        logit_cap=logit_cap,
    )


def _experts_of_qwen(raw: Raw) -> Experts | None:
    found = raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"]
    count, used = int(found), int(raw["num_experts_per_tok"])
    if count == 0:
        return None
    if not 0 < used <= count:
        raise ModelError(f"num_experts_per_tok {used} is not supported with {count} experts")
    mlp = int(raw["moe_intermediate_size"])
    return Experts(count, used, mlp, bool(raw.get("norm_topk_prob")))


def _keys_of_lfm2(raw: Raw) -> Raw:
    """Liquid's names. Unless told otherwise, an MLP has two thirds of the channels that are stated,
    rounded up."""
    mlp = int(raw.get("block_ff_dim") or raw["intermediate_size"])
    if raw.get("block_auto_adjust_ff_dim", True):
        factor = float(raw.get("block_ffn_dim_multiplier") or 1)
        multiple = int(raw.get("block_multiple_of") or 256)
        mlp = -(-int(factor * int(2 * mlp / 3)) // multiple) * multiple
    full, layers = raw.get("full_attn_idxs"), range(int(raw["num_hidden_layers"]))
    types = [FULL if full is None or layer in full else CONVOLUTION for layer in layers]
    return {
        "rope_theta": raw.get("theta") or 1000000.0,
        "tie_word_embeddings": raw.get("tie_embedding", True),
        **raw,
        "layer_types": raw.get("layer_types") or types,
        "rms_norm_eps": raw["norm_eps"],
        "intermediate_size": mlp,
    }


def _has_experts(raw: Raw, layer: int) -> bool:
    """Whether a layer of a model with experts has them."""
    dense = raw.get("mlp_only_layers") or ()
    return layer not in dense and (layer + 1) % int(raw.get("decoder_sparse_step") or 1) == 0


_LLAMA_NORMS, _LLAMA_NAMES = Norms(), MatrixNames()
_GEMMA_NORMS = Norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    offset=1.0,
)
_OLMO_NORMS = Norms(
    None, "post_attention_layernorm", None, "post_feedforward_layernorm", HeadNorm.ROW
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family differs from Llama.

    `layer_type` tells which layers slide if config.json has no `layer_types`. `slides` is whether
    they do without `use_sliding_window`. `has_rope` tells which layers have a rope. `only` are keys
    of which one value is run. `biased` are the biases that are there whatever config.json says;
    None if `attention_bias` and `mlp_bias` say so. `keys` gives the keys of Llama for those of the
    family.
    """

    norms: Norms = _LLAMA_NORMS
    names: MatrixNames = _LLAMA_NAMES
    biased: MatrixBiases | None = None
    activation: str = "hidden_act"
    mlp: str = "intermediate_size"
    tied: bool = False  # unless `tie_word_embeddings` says otherwise
    scales: Callable[[Raw], Scales] = field(default=lambda raw: Scales())
    layer_type: Callable[[Raw, int], str] = _every_layer_full
    slides: bool = True
    has_rope: Callable[[Raw, int], bool] = field(default=lambda raw, layer: True)
    experts: Callable[[Raw], Experts | None] = field(default=lambda raw: None)
    local_theta: str | None = None  # the key of the sliding layers' theta, if their rope is plain
    keys: Callable[[Raw], Raw] = field(default=lambda raw: raw)
    only: Mapping[str, Any] = field(default_factory=dict)


_MISTRAL = Family(biased=MatrixBiases(), layer_type=_every_layer_slides)
_QWEN2 = Family(biased=MatrixBiases(qkv=True), layer_type=_last_layers_slide, slides=False)
_QWEN3 = Family(norms=Norms(heads=HeadNorm.HEAD), layer_type=_last_layers_slide, slides=False)
_GEMMA2 = Family(
    norms=_GEMMA_NORMS,
    activation="hidden_activation",
    tied=True,
    scales=_scales_of_gemma,
    layer_type=_one_full_in(2),
)
_GEMMA3 = Family(
    norms=replace(_GEMMA_NORMS, heads=HeadNorm.HEAD),
    activation="hidden_activation",
    tied=True,
    scales=_scales_of_gemma,
    layer_type=_one_full_in(6),
    local_theta="rope_local_base_freq",
    only={"use_bidirectional_attention": False},
)
# The text_config of a published Gemma 3 states only what its size changes.
_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": _MISTRAL,
    "MinistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": Family(
        norms=Norms(heads=HeadNorm.HEAD),
        layer_type=_every_layer_slides,
        slides=False,
        experts=_experts_of_qwen,
    ),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(
        _GEMMA3, keys=lambda raw: {**_GEMMA3_DEFAULTS, **raw["text_config"]}
    ),
    "Phi3ForCausalLM": Family(
        names=MatrixNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        biased=MatrixBiases(),
        layer_type=_every_layer_slides,
    ),
    "SmolLM3ForCausalLM": Family(
        tied=True,
        slides=False,
        layer_type=lambda raw, layer: FULL if _one_in_four_without_rope(raw, layer) else SLIDING,
        has_rope=_one_in_four_without_rope,
    ),
    "GraniteForCausalLM": Family(scales=_scales_of_granite),
    "GraniteMoeHybridForCausalLM": Family(
        names=MatrixNames(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
        mlp="shared_intermediate_size",
        scales=_scales_of_granite,
        layer_type=lambda raw, layer: "mamba",
        has_rope=lambda raw, layer: raw.get("position_embedding_type") == "rope",
        only={"num_local_experts": 0},
    ),
    "Lfm2ForCausalLM": Family(
        norms=Norms(
            "operator_norm",
            None,
            "ffn_norm",
            heads=HeadNorm.HEAD,
            query="self_attn.q_layernorm",
            key="self_attn.k_layernorm",
            last="model.embedding_norm",
        ),
        names=MatrixNames(
            out="self_attn.out_proj",
            gate_up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
        ),
        biased=MatrixBiases(),
        tied=True,
        keys=_keys_of_lfm2,
        only={"conv_bias": False},
    ),
    "Olmo2ForCausalLM": Family(norms=_OLMO_NORMS),
    "Olmo3ForCausalLM": Family(
        norms=_OLMO_NORMS, layer_type=_one_full_in(4), local_theta="rope_theta"
    ),
}
# What people ask for, and what runs it.
REFUSED: Mapping[str, str] = {
    "GptOssForCausalLM": "its attention sinks and MXFP4 experts are not computed here; serve it "
    "with --engine vllm, or a GGUF file of it with --engine llamacpp",
    "OPTForCausalLM": "its learned positions are not computed here; serve it with --engine vllm",
}

# Other names of attention layers. "attention" is Granite 4's.
_TYPES = {FULL: FULL, "attention": FULL, SLIDING: SLIDING, CONVOLUTION: CONVOLUTION}
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


def read_config(directory: Path) -> ModelConfig:
    """Read and check config.json (and the stop tokens of generation_config.json)."""
    raw = read_json(directory / "config.json")
    names = raw.get("architectures") or ["none"]
    if names[0] in REFUSED:
        raise ModelError(f"architecture {names[0]} is not supported: {REFUSED[names[0]]}")
    if names[0] not in FAMILIES:
        raise ModelError(
            f"architecture {names[0]} is not supported; this engine runs {', '.join(FAMILIES)}; "
            "serve others with --engine vllm, or a GGUF file of them with --engine llamacpp"
        )
    _check_not_quantised(names[0], raw)
    generation = directory / "generation_config.json"
    stops = read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = stops if stops is not None else raw.get("eos_token_id")
    try:
        family = FAMILIES[names[0]]
        return _llama(names[0], family, family.keys(raw), _ids(eos))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{directory / 'config.json'} lacks or misstates {error}") from None


def _check_not_quantised(name: str, raw: Raw) -> None:
    """Raise ModelError for weights that a library has quantised, as FP8, AWQ and GPTQ."""
    found = raw.get("quantization_config")
    if not found:
        return
    how = (
        str(found.get("quant_method") or "of no name") if isinstance(found, dict) else "of no name"
    )
    bits = found.get("bits") if isinstance(found, dict) else None
    raise ModelError(
        f"quantization_config {how}{f' of {bits} bits' if bits else ''} is not supported in a "
        f"{name}; serve it with --engine vllm, or give 16-bit weights or a GGUF file"
    )


def _only(name: str, raw: Raw, values: Raw) -> None:
    """Raise ModelError if one of these keys has another value."""
    for key, only in values.items():
        found = raw.get(key)
        if found is not None and found != only:
            raise ModelError(f"{key} {found!r} is not supported in a {name}; only {only!r} is")


def _ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (int(value),)


def _llama(name: str, family: Family, raw: Raw, eos: tuple[int, ...]) -> LlamaConfig:
    _only(name, raw, family.only)
    act = raw.get(family.activation) or raw.get("hidden_act") or "silu"
    if act not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise ModelError(f"{family.activation} {act!r} is not supported in a {name}; {known} are")
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    size = int(raw.get("head_dim") or hidden // heads)
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if min(heads, kv_heads, size) < 1 or heads % kv_heads or size % 2:
        raise ModelError(
            f"{heads} heads of {size} numbers with {kv_heads} heads of keys are not supported"
        )
    bias = bool(raw.get("attention_bias"))
    return LlamaConfig(
        architecture=name,
        vocabulary=int(raw["vocab_size"]),
        hidden=hidden,
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        mlp=int(raw[family.mlp]),
        context_limit=int(raw["max_position_embeddings"]),
        tied=bool(raw.get("tie_word_embeddings", family.tied)),
        eos=eos,
        kinds=tuple(_kinds(name, family, raw, size)),
        norm_eps=float(raw["rms_norm_eps"]),
        norms=family.norms,
        names=family.names,
        biases=family.biased or MatrixBiases(bias, bias, bool(raw.get("mlp_bias"))),
        scales=family.scales(raw),
        activation=_ACTIVATIONS[act],
        experts=family.experts(raw),
    )


def _kinds(name: str, family: Family, raw: Raw, head_size: int) -> list[LayerKind]:
    """The kind of each layer. A window as long as the longest context is none."""
    layers, stated = int(raw["num_hidden_layers"]), raw.get("layer_types")
    types = [stated[i] if stated else family.layer_type(raw, i) for i in range(layers)]
    taps = int(raw.get("conv_L_cache") or 0)
    odd = [kind for kind in types if kind not in _TYPES or (kind == CONVOLUTION and taps < 2)]
    if odd:
        raise ModelError(f"layer_types {odd[0]!r} is not supported in a {name}")
    window = raw.get("sliding_window") if raw.get("use_sliding_window", family.slides) else None
    if window is not None and int(window) >= int(raw["max_position_embeddings"]):
        window = None
    experts = family.experts(raw)
    ropes = {kind: _rope_of(kind, family, raw, head_size) for kind in (FULL, SLIDING)}
    return [
        LayerKind(None, taps=taps)
        if kind == CONVOLUTION
        else LayerKind(
            ropes[kind] if family.has_rope(raw, i) else None,
            int(window) if kind == SLIDING and window is not None else None,
            experts is not None and _has_experts(raw, i),
        )
        for i, kind in enumerate(_TYPES[kind] for kind in types)
    ]


def _rope_of(kind: str, family: Family, raw: Raw, head_size: int) -> Rope:
    """Newer files have `rope_parameters`, perhaps an entry for each type of layer, and older ones
    `rope_theta` and `rope_scaling`."""
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if kind in found:
        return read_rope(found[kind], raw, head_size)
    if family.local_theta is not None and kind == SLIDING:
        return read_rope({"rope_theta": raw.get(family.local_theta) or 10000.0}, raw, head_size)
    return read_rope(found, raw, head_size)
