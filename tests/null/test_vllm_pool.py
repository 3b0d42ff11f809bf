"""The size of vLLM's cache, as lines of its metrics: no vLLM, no network."""

from __future__ import annotations

import pytest

from weftline_engine.vllm.pool import kv_tokens


def told(**labels: str) -> str:
    words = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{words}}} 1.0\n"


OTHER = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3.0\n"
BLOCKS = {"block_size": "16", "num_gpu_blocks": "100"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (OTHER + told(**BLOCKS, kv_cache_size_tokens="1200"), 1200),  # of a hybrid model
        (told(**BLOCKS), 1600),  # an older vLLM
        (told(**BLOCKS, kv_cache_size_tokens="None"), 1600),
        (told(engine="0", **BLOCKS) + told(engine="1", **BLOCKS), 3200),  # data parallel
        (told(engine="0", **BLOCKS) + told(engine="1", block_size="16"), None),
        (told(block_size="16", num_gpu_blocks="None"), None),
        (told(block_size="16", num_gpu_blocks="-5"), None),
        (OTHER, None),
        ("", None),
        ("<html>{", None),
    ],
)
def test_the_pool_is_read_where_it_is_told(text: str, tokens: int | None) -> None:
    assert kv_tokens(text.encode()) == tokens
