"""Reads from vLLM's metrics how large its KV cache is, and which of them tell how full it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from weftline_engine.remote.prefix_cache.gauge import GaugeNames


def kv_tokens(metrics: bytes, rank: int | None = None) -> int | None:
    """Return the tokens that vLLM's KV cache holds, over all data-parallel ranks or in one of them.

    `metrics` is the text of GET /metrics. None if it does not state the size, or is not valid.
    """
    return _sum(metrics, rank, _cache_tokens)


def kv_blocks(metrics: bytes, rank: int | None = None) -> int | None:
    """Return the blocks of vLLM's KV cache, like its tokens."""
    return _sum(metrics, rank, lambda labels: _count(labels.get("num_gpu_blocks")))


def block_tokens(metrics: bytes) -> int | None:
    """Return the tokens of one block, or None if they are not stated."""
    return max((_count(one.get("block_size")) or 0 for one in _stated(metrics)), default=0) or None


def gauge_names(rank: int | None = None) -> GaugeNames:
    """Return the names of the metrics that tell how full the cache is: of all data-parallel ranks,
    or of one of them."""
    return GaugeNames(
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        label="" if rank is None else f'engine="{rank}"',
    )


def ranks(metrics: bytes) -> int:
    """Return how many data-parallel ranks state the size of their cache."""
    return len({labels.get("engine") for labels in _stated(metrics)})


def _sum(
    metrics: bytes, rank: int | None, size: Callable[[Mapping[str, str]], int | None]
) -> int | None:
    """The sum of a size over all ranks or of one, or None if one of them does not state it."""
    sizes = [
        size(labels)
        for labels in _stated(metrics)
        if rank is None or labels.get("engine") == str(rank)
    ]
    known = [one for one in sizes if one is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _stated(metrics: bytes) -> list[Mapping[str, str]]:
    """What vLLM states of the cache of each rank; empty if the text is not valid."""
    try:
        families = [
            family
            for family in text_string_to_metric_families(metrics.decode(errors="replace"))
            if family.name == "vllm:cache_config_info"
        ]
    except (ValueError, KeyError, IndexError):  # the parser's errors for other text
        return []
    return [sample.labels for family in families for sample in family.samples]


def _cache_tokens(labels: Mapping[str, str]) -> int | None:
    """Return the tokens of one engine's cache, or None if they are not stated.

    vLLM 0.32 states tokens. Earlier versions state blocks and tokens per block, which gives the
    same number if all layers of the model are alike.
    """
    if tokens := _count(labels.get("kv_cache_size_tokens")):
        return tokens
    blocks, size = _count(labels.get("num_gpu_blocks")), _count(labels.get("block_size"))
    return blocks * size if blocks and size else None


def _count(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None
