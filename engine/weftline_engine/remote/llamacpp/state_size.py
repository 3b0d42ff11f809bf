"""How much memory one copy of a model's state takes, by its settings in the GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOAT_BYTES, KEY_BYTES = 4, 2  # llama.cpp's types of recurrent states, and of keys and values


def state_bytes(metadata: Mapping[str, Any]) -> int:
    """The bytes of a checkpoint of a recurrent state, or of the windows. 0 if there is no state."""
    prefix = metadata.get("general.architecture")

    def number(name: str) -> int:
        found = metadata.get(f"{prefix}.{name}")
        found = max(found) if isinstance(found, list | tuple) and found else found
        return found if isinstance(found, int) else 0

    layers, width = number("block_count"), number("embedding_length")
    heads = metadata.get(f"{prefix}.attention.head_count_kv")
    if isinstance(heads, list | tuple):
        recurrent = sum(not one for one in heads)
    else:
        listed = metadata.get(f"{prefix}.attention.recurrent_layers") or [True] * layers
        recurrent = sum(map(bool, listed))
    if state := number("ssm.state_size"):
        inner = number("ssm.inner_size")
        kept = (number("ssm.conv_kernel") - 1) * (inner + 2 * number("ssm.group_count") * state)
        return recurrent * (kept + state * inner) * FLOAT_BYTES
    if cached := number("shortconv.l_cache"):
        return recurrent * (cached - 1) * width * FLOAT_BYTES
    key = number("attention.key_length") or width // max(1, number("attention.head_count"))
    value = number("attention.value_length") or key
    token = layers * number("attention.head_count_kv") * (key + value) * KEY_BYTES
    return number("attention.sliding_window") * token
