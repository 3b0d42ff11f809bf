"""Whether a model has a state beside its keys and values, by its config.json."""

from __future__ import annotations

import json
from pathlib import Path

# Types of layers with keys and values alone.
_ATTENTION = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
# Keys of models that have a state and name no types of layers.
_OF_STATES = ("ssm_cfg", "state_size", "mamba_d_state", "linear_num_key_heads", "conv_L_cache")


def has_state(directory: Path) -> bool:
    """Whether the model of a directory has one. Without a config.json nobody knows."""
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    raw = raw.get("text_config") or raw
    types = raw.get("layer_types") or raw.get("layers_block_type")
    if types:
        return not set(types) <= _ATTENTION
    return any(raw.get(key) for key in _OF_STATES)
