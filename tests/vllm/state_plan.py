"""A program for vLLM's interpreter that plans prompts of a model with a state, by our scheduler.

`python state_plan.py MODEL` prints for each story how many tokens of each prompt are computed, as
JSON. No model is loaded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.vllm.asynchronous_plan import computed
from weftline_engine.remote.vllm.scheduler import WeftlineScheduler
from weftline_engine.remote.vllm.versions import SCHEDULER

BLOCK, BLOCKS, STEP, LONGEST = 16, 200, 512, 1024
OWN = 40  # tokens of each sibling's own
SHARED = tuple(range(1000, 1200))  # of siblings: 12 whole blocks
DEEP = (*SHARED, *range(2000, 2200))  # of two of them: 25 whole blocks


def created(model: str) -> Scheduler:
    """Our scheduler for a model with a group of attention and one of states."""
    cache = CacheConfig(
        block_size=BLOCK,
        mamba_block_size=BLOCK,
        mamba_cache_mode="align",
        enable_prefix_caching=True,
    )
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=LONGEST),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=STEP,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy="priority",
            scheduler_cls=SCHEDULER,
        ),
    )
    cache.mamba_cache_mode = "align"
    cache.num_gpu_blocks = BLOCKS
    attention = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    states = MambaSpec(BLOCK, shapes=((1, 32),), dtypes=(torch.float32,), mamba_cache_mode="align")
    chosen = config.scheduler_config.get_scheduler_cls()
    groups = [KVCacheGroupSpec(["conv"], states), KVCacheGroupSpec(["attention"], attention)]
    interval = cache.prefix_cache_retention_interval
    return chosen(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], groups, prefix_cache_retention_interval=interval),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def request(name: str, prompt: tuple[int, ...], borders: list[int] | None) -> Request:
    """A request for one token, with the borders that our server sends."""
    extra: dict[str, Any] = {} if borders is None else {"weftline_borders": borders}
    sampling = SamplingParams(max_tokens=1, extra_args=extra)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, list(prompt), sampling, None, priority=len(name), block_hasher=hasher)


def planned(model: str, *turns: list[Request]) -> dict[str, int]:
    """The tokens that are computed of each request, in several turns one after the other."""
    scheduler, found = created(model), Counter[str]()
    assert isinstance(scheduler, WeftlineScheduler)
    for turn in turns:
        for one in turn:
            scheduler.add_request(one)
        while scheduler.has_unfinished_requests():
            step = scheduler.schedule()
            found.update(step.num_scheduled_tokens)
            answers = computed(step)
            names = answers.req_ids
            answers.sampled_token_ids = [[7] * is_whole(scheduler, one) for one in names]
            scheduler.update_from_output(step, answers)
    assert len(scheduler._stops) == 0, "stops of requests that have ended"
    return found


def is_whole(scheduler: Scheduler, name: str) -> bool:
    """Whether a request's prompt is computed with the step that was planned."""
    one = scheduler.requests[name]
    return one.num_computed_tokens >= one.num_prompt_tokens


def siblings(borders: list[int] | None) -> list[Request]:
    return [request("s" * size, (*SHARED, *[size] * OWN), borders) for size in (1, 2, 3)]


def main(model: str) -> None:
    """Siblings at once, with borders and without; and two levels of them, one after the other."""
    init_none_hash(sha256)
    ends = [len(SHARED), len(DEEP)]
    levels = [[request(f"deep {own}", (*DEEP, *[own] * OWN), ends)] for own in (1, 2)]
    beside = [request("beside", (*SHARED, *[9] * OWN), None)]
    stories = {
        "with": planned(model, siblings([len(SHARED)])),
        "without": planned(model, siblings(None)),
        "levels": planned(model, *levels, beside),
    }
    print(json.dumps(stories))


if __name__ == "__main__":
    main(sys.argv[1])
