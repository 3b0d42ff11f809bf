"""The sizes of models that people run, with random weights of each type and a config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weftline_engine.own.embedded.model.checkpoint import RandomWeights
from weftline_engine.own.embedded.model.config import (
    Experts,
    HeadNorm,
    LayerKind,
    LlamaConfig,
    Norms,
    Rope,
)
from weftline_engine.own.embedded.model.families import CONVOLUTION, FAMILIES, FULL
from weftline_engine.own.embedded.model.matrix import Matrix
from weftline_engine.own.models.gguf_architecture import ARCHITECTURES
from weftline_kernels.cpu.blocks import SIZES, WeightType, row_bytes

_QWEN3 = LlamaConfig(
    architecture="Qwen3ForCausalLM",
    vocabulary=151_936,
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_size=128,
    mlp=3072,
    context_limit=40_960,
    tied=True,
    eos=(151_645,),
    kinds=(LayerKind(Rope(1_000_000.0)),),
    norm_eps=1e-6,
    norms=Norms(heads=HeadNorm.HEAD),
)
_LFM2_ATTENDS = (2, 5, 8, 10, 12, 14)  # the layers with attention
SHAPES = {
    "qwen3-0.6b": _QWEN3,
    "llama3.2-1b": replace(
        _QWEN3,
        architecture="LlamaForCausalLM",
        vocabulary=128_256,
        hidden=2048,
        layers=16,
        heads=32,
        head_size=64,
        mlp=8192,
        norms=Norms(),
    ),
    "qwen3-1.7b": replace(_QWEN3, hidden=2048, mlp=6144),
    "qwen3-4b": replace(_QWEN3, hidden=2560, layers=36, heads=32, mlp=9728),
    "llama3-8b": replace(
        _QWEN3,
        architecture="LlamaForCausalLM",
        vocabulary=128_256,
        hidden=4096,
        layers=32,
        heads=32,
        mlp=14_336,
        tied=False,
        norms=Norms(),
    ),
    "qwen3-30b-a3b": replace(
        _QWEN3,
        architecture="Qwen3MoeForCausalLM",
        hidden=2048,
        layers=48,
        heads=32,
        kv_heads=4,
        tied=False,
        kinds=(LayerKind(Rope(1_000_000.0), experts=True),),
        experts=Experts(count=128, used=8, mlp=768, normalised=True),
    ),
    "lfm2-350m": replace(
        _QWEN3,
        architecture="Lfm2ForCausalLM",
        vocabulary=65_536,
        layers=16,
        head_size=64,
        mlp=4608,
        context_limit=128_000,
        kinds=tuple(
            LayerKind(Rope(1_000_000.0)) if layer in _LFM2_ATTENDS else LayerKind(None, taps=3)
            for layer in range(16)
        ),
        norm_eps=1e-5,
        norms=FAMILIES["Lfm2ForCausalLM"].norms,
        names=FAMILIES["Lfm2ForCausalLM"].names,
    ),
}
TYPES = ("bfloat16", "q8_0", "q4_0", "q4_k", "q4_k_m")


class RandomBlocks(RandomWeights):
    """Random blocks of a type for every matrix. With q4_k_m a matrix has the type that llama.cpp
    gives it in a file of that name."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        self._kind, self._layers = kind, layers

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        if name.endswith("conv.conv.weight"):  # three numbers a channel, which no file quantises
            return super().matrix(name, shape)
        kind = self._type_of(name)
        rows = min(shape[0], 64)
        draw = np.random.default_rng(0)
        data = draw.integers(0, 256, (rows, row_bytes(kind, shape[1])), dtype=np.uint8)
        weights, size = SIZES[kind]
        blocks = data.reshape(rows, -1, size)
        scale = np.array([1e-3 if weights == 32 else 1e-5], np.float16).view(np.uint8)
        for at in (208,) if kind == WeightType.Q6_K else (0, 2) if weights == 256 else (0,):
            blocks[..., at : at + 2] = scale
        return Matrix(kind, np.tile(data, (-(-shape[0] // rows), 1))[: shape[0]], shape[1])

    def _type_of(self, name: str) -> WeightType:
        if self._kind != "q4_k_m":
            return WeightType[self._kind.upper()]
        fine = "embed" in name or "lm_head" in name
        if name.endswith(("v_proj.weight", "down_proj.weight")):
            layer, eighth = int(name.split(".")[2]), self._layers // 8
            fine = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return WeightType.Q6_K if fine else WeightType.Q4_K


def config_of(shape: LlamaConfig, base: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a shape, with the vocabulary of the config.json `base`."""
    rope = next(kind.rope for kind in shape.kinds if kind.rope is not None)
    [type_of] = {one.model_type for one in ARCHITECTURES.values() if one.name == shape.architecture}
    return {
        "architectures": [shape.architecture],
        "model_type": type_of,
        **{name: base[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")},
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.context_limit,
        "tie_word_embeddings": shape.tied,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.theta},
        "attention_bias": False,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        **({} if shape.experts is None else experts_of(shape.experts)),
        **({} if not shape.taps else convolutions_of(shape)),
    }


def convolutions_of(shape: LlamaConfig) -> dict[str, Any]:
    """The keys of a model in which some layers have short convolutions."""
    kinds = [shape.kind(layer) for layer in range(shape.layers)]
    return {
        "norm_eps": shape.norm_eps,
        "block_auto_adjust_ff_dim": False,
        "conv_bias": False,
        "conv_L_cache": shape.taps,
        "layer_types": [CONVOLUTION if kind.taps else FULL for kind in kinds],
    }


def experts_of(experts: Experts) -> dict[str, Any]:
    """The keys of a mixture of experts in every layer."""
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.mlp,
        "norm_topk_prob": experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
