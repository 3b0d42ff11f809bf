"""Models of random weights for vLLM: a size that people run, with a small model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.harness.texts import ROOT
from bench.micro.random_models import SHAPES
from weftline.errors import InvalidRequest
from weftline_engine.embedded.model.config import Experts, HeadNorm, LlamaConfig


def random_model(shape: str, base: Path, folder: Path = ROOT / "out" / "models") -> Path:
    """A directory with the files of `base`, but for the weights, and a config.json of the `shape`.

    `--load-format dummy` fills its matrices with random numbers. Their time is that of real ones.
    The vocabulary is that of the tokenizer of `base`, because an id beyond it has no text.
    Raises InvalidRequest for an unknown shape.
    """
    if shape not in SHAPES:
        raise InvalidRequest(f"there is no shape {shape!r}: there are {', '.join(SHAPES)}")
    of_base = json.loads((base / "config.json").read_text())
    made = folder / f"{shape}-random"
    made.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        link = made / file.name
        if file.suffix != ".safetensors" and file.name != "config.json" and not link.exists():
            link.unlink(missing_ok=True)  # the base was moved
            link.symlink_to(file.resolve())
    (made / "config.json").write_text(json.dumps(config_of(SHAPES[shape], of_base), indent=1))
    return made


def config_of(shape: LlamaConfig, base: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a shape, with the vocabulary of the config.json `base`."""
    [kind] = shape.kinds
    assert kind.rope is not None, "each of the shapes has rotary embeddings"
    is_qwen = shape.norms.heads is HeadNorm.HEAD
    type_of = "llama" if not is_qwen else "qwen3_moe" if shape.experts else "qwen3"
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
        "rope_parameters": {"rope_type": "default", "rope_theta": kind.rope.theta},
        "attention_bias": False,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        **({} if shape.experts is None else experts_of(shape.experts)),
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
