"""How many tokens vLLM's KV cache holds, by what it tells of itself in its metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

_INFO = "vllm:cache_config_info"


def kv_tokens(metrics: bytes) -> int | None:
    """Of all data-parallel engines together; None where the metrics do not say, or say nonsense."""
    try:
        families = [
            family
            for family in text_string_to_metric_families(metrics.decode(errors="replace"))
            if family.name == _INFO
        ]
    except (ValueError, KeyError, IndexError):  # all that the parser raises where it is not theirs
        return None
    sizes = [_size(sample.labels) for family in families for sample in family.samples]
    return sum(sizes) if sizes and all(sizes) else None


def _size(labels: Mapping[str, str]) -> int:
    """Tokens of one engine, 0 where they are not told: 0.32 tells them, those before their blocks,
    which is the same for a model whose layers are all alike."""
    if tokens := _count(labels.get("kv_cache_size_tokens")):
        return tokens
    return _count(labels.get("num_gpu_blocks")) * _count(labels.get("block_size"))


def _count(value: str | None) -> int:
    return int(value) if value is not None and value.isascii() and value.isdigit() else 0
