"""Measures the seconds to compute KV cache again, and to copy it to host memory and back."""

from __future__ import annotations

import time
from collections.abc import Callable

from weftline_engine.api import KvCosts
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.device import Array, ComputeDevice
from weftline_engine.own.embedded.step_budget import RowCost

# Blocks of a measured copy, and how often it is repeated. The fastest counts.
BLOCKS = 16
REPEATS = 3


def kv_costs(
    step: RowCost | None,
    cache: Array,
    device: ComputeDevice,
    config: SchedulerConfig,
    host_tokens: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> KvCosts | None:
    """The costs, or None if those of a `step` are not known.

    To measure, it copies blocks onto themselves, which changes nothing.
    """
    if step is None:
        return None
    blocks = range(min(BLOCKS, config.blocks))
    pairs = [(block, block) for block in blocks]
    seconds = []
    for _ in range(REPEATS):
        began = clock()
        device.blocks.restore(cache, device.blocks.save(cache, blocks), pairs)
        cache[(0,) * cache.ndim].item()  # waits for the device
        seconds.append(clock() - began)
    return KvCosts(
        step_s=step.base_s,
        fill_s=step.row_s,
        chunk=config.step_tokens,
        copy_s=min(seconds) / 2 / (len(blocks) * config.block_size),
        host_tokens=host_tokens,
    )
