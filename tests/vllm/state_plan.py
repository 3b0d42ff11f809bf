"""A story of plans.py: our scheduler plans prompts of a model with a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.vllm.asynchronous_plan import computed
from weftline_engine.api import Retention
from weftline_engine.remote.vllm.scheduler import WeftlineScheduler
from weftline_engine.remote.vllm.versions import SCHEDULER

BLOCK, BLOCKS, STEP, LONGEST = 16, 200, 512, 1024
OWN = 40  # tokens of each sibling's own
FEW_BLOCKS = 60
ANSWERS = {"long": 40}  # tokens of answers; others have one
SHARED = tuple(range(1000, 1200))  # of siblings: 12 whole blocks
DEEP = (*SHARED, *range(2000, 2200))  # of two of them: 25 whole blocks


STATES = MambaSpec(BLOCK, shapes=((1, 32),), dtypes=(torch.float32,), mamba_cache_mode="align")


def created(
    model: str, blocks: int = BLOCKS, others: Sequence[KVCacheSpec] = (STATES,)
) -> WeftlineScheduler:
    """Our scheduler for a model with a group of attention to all tokens, and other groups."""
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
    cache.num_gpu_blocks = blocks
    attention = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    chosen = config.scheduler_config.get_scheduler_cls()
    groups = [KVCacheGroupSpec([f"layer {at}"], one) for at, one in enumerate((*others, attention))]
    interval = cache.prefix_cache_retention_interval
    found = chosen(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], groups, prefix_cache_retention_interval=interval),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    assert isinstance(found, WeftlineScheduler)
    return found


def request(name: str, prompt: tuple[int, ...], borders: list[int] | None = None) -> Request:
    """A request for a few tokens, with the borders that our server sends. Its context has its name,
    and the one with the shortest name goes first."""
    extra: dict[str, Any] = {"weftline_context": name, "weftline_application": name}
    if borders is not None:
        extra["weftline_borders"] = borders
    sampling = SamplingParams(max_tokens=ANSWERS.get(name, 1), ignore_eos=True, extra_args=extra)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, list(prompt), sampling, None, priority=len(name), block_hasher=hasher)


def run(scheduler: WeftlineScheduler, *turn: Request) -> Counter[str]:
    """The prompt tokens that are computed of requests that come together."""
    found = Counter[str]()
    for one in turn:
        scheduler.add_request(one)
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        answers = computed(step)
        whole = []
        for name, tokens in step.num_scheduled_tokens.items():
            one = scheduler.requests[name]
            whole.append(one.num_computed_tokens >= one.num_prompt_tokens)
            if one.num_computed_tokens - tokens < one.num_prompt_tokens:
                found[name] += tokens
        answers.sampled_token_ids = [[7] * one for one in whole]
        scheduler.update_from_output(step, answers)
    assert len(scheduler._stops) == 0, "stops of requests that have ended"
    return found


def siblings(borders: list[int] | None) -> list[Request]:
    return [request("s" * size, (*SHARED, *[size] * OWN), borders) for size in (1, 2, 3)]


def next_turn(model: str, *, kept: bool) -> int:
    """What the next turn of a conversation computes, after others have needed the pool. Either its
    context is kept, or it was the last that ended: it generated while another one came and went.
    """
    scheduler = created(model, FEW_BLOCKS)
    if kept:
        run(scheduler, request("long", DEEP, []))
        scheduler._contexts.retain("long", Retention.KEEP)
        others = 3
    else:
        run(scheduler, request("long", DEEP, []), request("beside", tuple(range(5000, 5300))))
        others = 1
    for other in range(others):
        run(scheduler, request("other", tuple(range(6000 + 400 * other, 6400 + 400 * other))))
    return run(scheduler, request("next", (*DEEP, *range(OWN))))["next"]


def computed_with_states(model: str) -> dict[str, Any]:
    """How many tokens of each prompt are computed: siblings at once, with borders and without; two
    levels of them, one after the other; and conversations in a full pool."""
    init_none_hash(sha256)
    ends = [len(SHARED), len(DEEP)]
    levels, scheduler = Counter[str](), created(model)
    for own in (1, 2):
        levels += run(scheduler, request(f"deep {own}", (*DEEP, *[own] * OWN), ends))
    levels += run(scheduler, request("beside", (*SHARED, *[9] * OWN)))
    return {
        "with": run(created(model), *siblings([len(SHARED)])),
        "without": run(created(model), *siblings(None)),
        "levels": levels,
        "next turn": [next_turn(model, kept=kept) for kept in (True, False)],
    }
