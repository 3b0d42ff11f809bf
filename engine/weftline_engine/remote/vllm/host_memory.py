"""How much host memory a vLLM on GPUs gets for copies of contexts, and how many tokens fit."""

from __future__ import annotations

import json
from pathlib import Path

GIB = 1 << 30
# By default half of the memory that is free, so that weights and other programs find theirs. Less
# than LEAST_GIB holds no session of a coding agent beside an 8B model: 100,000 tokens are 12 GiB.
FREE_SHARE = 0.5
LEAST_GIB = 16


def usual_gib(available: int | None) -> int:
    """The GiB that are taken where nobody says how many; 0 on a machine with too little memory."""
    found = int((available or 0) * FREE_SHARE / GIB)
    return found if found >= LEAST_GIB else 0


def host_tokens(gib: float, model: Path, dtype: str) -> int:
    """The tokens whose keys and values fit into so many GiB, by the model's config.json. 0 if it
    does not tell the size of a token."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        token = 2 * int(config["num_hidden_layers"]) * int(heads) * int(size)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return 0
    return int(gib * GIB / (token * (4 if dtype == "float32" else 2))) if token else 0
