"""A story of plans.py: our scheduler plans prompts of a model with sliding windows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from tests.vllm.state_plan import BLOCK, DEEP, OWN, SHARED, created, request, run, siblings
from weftline_engine.api import Retention
from weftline_engine.remote.vllm.scheduler import WeftlineScheduler

WINDOW = 2 * BLOCK  # shorter than the answer of "long"
FEW_BLOCKS = 120


def windowed(model: str, blocks: int = 400) -> WeftlineScheduler:
    """Two groups of layers have windows, as in Gemma 3, and one attends to all tokens."""
    window = SlidingWindowSpec(
        BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW
    )
    return created(model, blocks, (window, window))


def next_turn(model: str, *, kept: bool) -> int:
    """What the next turn of a conversation computes that does not go on with the answer, after
    others have needed the pool. Its context is kept, or it was the last that ended."""
    scheduler = windowed(model, FEW_BLOCKS)
    if kept:
        run(scheduler, request("long", DEEP, []))
        scheduler._contexts.retain("long", Retention.KEEP)
    else:
        run(scheduler, request("long", DEEP, []), request("beside", tuple(range(5000, 5300))))
    for other in range(3 if kept else 1):
        run(scheduler, request("other", tuple(range(6000 + 400 * other, 6400 + 400 * other))))
    return run(scheduler, request("next", (*DEEP, *range(OWN)), []))["next"]


def after_an_agent(model: str) -> int:
    """What another agent computes. The first turn of an agent has been freed, and its second one
    has all but the window where agents part."""
    scheduler = windowed(model)
    run(scheduler, request("first", (*SHARED, *range(OWN)), [len(SHARED)]))
    run(scheduler, request("second", (*SHARED, *range(3 * OWN)), []))
    scheduler._contexts.free("first")
    run(scheduler, request("beside", tuple(range(5000, 5300))))
    return run(scheduler, request("other", (*SHARED, *[9] * OWN)))["other"]


def in_a_kept_pool(model: str) -> tuple[int, int]:
    """Every context is kept, and a prompt needs most of the pool: what its first step computes,
    and how many contexts are kept then."""
    scheduler = windowed(model, 160)
    for other in range(4):
        run(scheduler, request(f"kept {other}", tuple(range(400 * other, 400 * other + 300)), []))
        scheduler._contexts.retain(f"kept {other}", Retention.KEEP)
    scheduler.add_request(request("next", tuple(range(7000, 7900))))
    return scheduler.schedule().num_scheduled_tokens.get("next", 0), scheduler._contexts.pinned


def computed_with_windows(model: str) -> dict[str, Any]:
    """How many tokens of each prompt are computed, as with states."""
    ends = [len(SHARED), len(DEEP)]
    levels, scheduler = Counter[str](), windowed(model)
    for own in (1, 2):
        levels += run(scheduler, request(f"deep {own}", (*DEEP, *[own] * OWN), ends))
    levels += run(scheduler, request("beside", (*SHARED, *[9] * OWN)))
    return {
        "with": run(windowed(model), *siblings([len(SHARED)])),
        "without": run(windowed(model), *siblings(None)),
        "levels": levels,
        "next turn": [next_turn(model, kept=kept) for kept in (True, False)],
        "agents": after_an_agent(model),
        "kept": in_a_kept_pool(model),
    }
