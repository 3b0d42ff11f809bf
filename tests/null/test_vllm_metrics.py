"""The vllm engine reads the size of vLLM's KV cache from its metrics. No vLLM, no network."""

from __future__ import annotations

import pytest

from weftline_engine.remote.vllm.cache_size import block_tokens, kv_tokens


def config_info(**labels: str) -> str:
    """Return the metrics line that states the cache size of one engine."""
    words = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{words}}} 1.0\n"


OTHER = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3.0\n"
BLOCKS = {"block_size": "16", "num_gpu_blocks": "100"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (OTHER + config_info(**BLOCKS, kv_cache_size_tokens="1200"), 1200),  # a hybrid model
        (config_info(**BLOCKS), 1600),  # an older vLLM
        (config_info(**BLOCKS, kv_cache_size_tokens="None"), 1600),
        (
            config_info(engine="0", **BLOCKS) + config_info(engine="1", **BLOCKS),
            3200,
        ),  # data parallel
        (config_info(engine="0", **BLOCKS) + config_info(engine="1", block_size="16"), None),
        (config_info(block_size="16", num_gpu_blocks="None"), None),
        (config_info(block_size="16", num_gpu_blocks="-5"), None),
        (OTHER, None),
        ("", None),
        ("<html>{", None),
    ],
)
def test_cache_size_is_read_from_metrics(text: str, tokens: int | None) -> None:
    """The size is stated in tokens, or is blocks times block size. Engines add up. It is None if
    one is unknown.
    """
    assert kv_tokens(text.encode()) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (config_info(engine="0", **BLOCKS) + config_info(engine="1", **BLOCKS), 16),
        (config_info(num_gpu_blocks="100"), None),
        ("", None),
    ],
)
def test_the_size_of_a_block_is_read_from_metrics(text: str, tokens: int | None) -> None:
    """All engines of a vLLM have blocks of one size."""
    assert block_tokens(text.encode()) == tokens
