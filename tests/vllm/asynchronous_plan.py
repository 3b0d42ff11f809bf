"""A story of plans.py: our scheduler plans steps as vLLM does on a GPU.

Each step is planned before the last one's tokens are there, which vLLM calls asynchronous
scheduling. Its build for CPUs never does so by itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from weftline_engine.remote.vllm.scheduler import WeftlineScheduler
from weftline_engine.remote.vllm.versions import SCHEDULER

BLOCK, BLOCKS, PLACES, LONGEST = 16, 100, 2, 1024
PROMPT, ANSWER = 20, 3
PRIORITIES = {"first": 0, "second": 0, "third": 5, "fourth": -5}  # vLLM's: the least goes first


def created(
    model: str,
    *,
    places: int = PLACES,
    blocks: int = BLOCKS,
    scheduler_cls: str | None = SCHEDULER,
    transfer: KVTransferConfig | None = None,
) -> Scheduler:
    """A scheduler in a configuration that schedules asynchronously: ours, or another one.

    With a `transfer` of keys and values it has a prefix cache.
    """
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=transfer is not None)
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=LONGEST),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=places,
            max_num_batched_tokens=LONGEST,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            policy="priority",
            scheduler_cls=scheduler_cls,
        ),
        kv_transfer_config=transfer,
    )
    config.scheduler_config.async_scheduling = True
    cache.num_gpu_blocks = blocks
    layer = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    chosen = config.scheduler_config.get_scheduler_cls()
    return chosen(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def request(name: str, priority: int, answer: int = ANSWER) -> Request:
    """A request for a few tokens behind a short prompt."""
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Request(name, list(range(PROMPT)), sampling, None, priority=priority)


def computed(
    planned: SchedulerOutput, transferred: KVConnectorOutput | None = None
) -> ModelRunnerOutput:
    """One token for each request of a step."""
    names = list(planned.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
        kv_connector_output=transferred,
    )


def asynchronous_steps(model: str) -> dict[str, Any]:
    """The scheduler's class, and for each step the tokens of each request. Two requests run. Of the
    two that wait, the one that came last is the most urgent."""
    scheduler = created(model)
    assert isinstance(scheduler, WeftlineScheduler)
    for name, priority in PRIORITIES.items():
        scheduler.add_request(request(name, priority))
    steps: list[dict[str, int]] = []
    pending: deque[SchedulerOutput] = deque()
    while scheduler.has_unfinished_requests():
        planned = scheduler.schedule()
        steps.append(planned.num_scheduled_tokens)
        pending.append(planned)
        if len(pending) == 2:
            first = pending.popleft()
            scheduler.update_from_output(first, computed(first))
    return {"class": type(scheduler).__name__, "steps": steps}
