"""Whether vLLM goes on with a model's prompts at few places only, by its config.json.

vLLM keeps a state, and the keys and values of a window, at the end of a prompt and where it has
seen prompts part (`--prefix-cache-retention-interval 0`, its default).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Types of layers with the keys and values of all tokens. vLLM treats chunks as such.
_WHOLE = {"attention", "full_attention", "chunked_attention"}
_STATE_KEYS = ("ssm_cfg", "state_size", "mamba_d_state", "linear_num_key_heads", "conv_L_cache")


def goes_on_at_few_places(directory: Path) -> bool:
    """Whether the model of a directory has a state or windows. Without a config.json nobody
    knows."""
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    raw = raw.get("text_config") or raw
    types = set(raw.get("layer_types") or raw.get("layers_block_type") or ())
    if types - _WHOLE - {"sliding_attention"}:
        return True
    if types:
        return "sliding_attention" in types and _is_short(raw)
    return any(raw.get(key) for key in _STATE_KEYS) or _is_short(raw)


def _is_short(raw: dict[str, Any]) -> bool:
    """Whether a model without other types of layers has windows that are shorter than a prompt may
    be."""
    window, longest = raw.get("sliding_window"), raw.get("max_position_embeddings")
    if not isinstance(window, int) or raw.get("use_sliding_window") is False:
        return False
    return not isinstance(longest, int) or window < longest
