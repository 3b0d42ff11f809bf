"""Many short requests leave nothing behind."""

from __future__ import annotations

import ctypes
import gc
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from weftline_engine.api import Kind, Op, SamplingParams
from weftline_engine.bookkeeping.op_table import Live
from weftline_engine.bookkeeping.schedule.sequence import Sequence
from weftline_engine.own.embedded.engine import Core

Make = Callable[..., Any]
COUNT, BURST = 10_000, 25
WARM = 2_000  # requests after which all one-time allocations are done
# 8,000 requests that each leave a kilobyte exceed it; the allocator's own waste does not.
MOST_GROWTH = 6 * 2**20


def make_op(number: int, draw: random.Random) -> Op:
    """Three in four generate up to three tokens. Some are open, some have penalties."""
    sampling = SamplingParams(max_tokens=draw.randint(1, 3), seed=number)
    if draw.random() < 0.3:
        sampling = replace(sampling, presence_penalty=1.0, logprobs=1)
    generates = draw.random() < 0.75
    return Op(
        id=f"op{number}",
        kind=Kind.GENERATE if generates else Kind.FILL,
        context=f"op{number}",
        tokens=tuple(draw.choices(range(1, 4), k=draw.randint(1, 12))),
        sampling=sampling if generates else None,
        salt=draw.choice(["", "tenant"]),
        open=draw.random() < 0.2,
    )


def sizes(core: Core) -> dict[str, int]:
    """Count everything that could grow with the number of requests."""
    sampler, scheduler = core.worker.sampler, core.book.scheduler
    return {
        "live": len(core.book.ops) + len(core.book.ops._children) + len(core.book._log),
        "queued": len(scheduler.running) + len(scheduler.waiting),
        "contexts": len(scheduler.contexts.named),
        "slots taken": len(sampler._table._rows) - len(sampler._table._free),
        "penalties taken": len(sampler._penalties._output_PV) - len(sampler._penalties._free),
        "matchers": len(sampler._matchers),
        "held blocks": scheduler.pool.count - scheduler.tree.available,
    }


def resident() -> int:
    """Return the resident bytes of this process, after free memory was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def finish(core: Core, ops: list[Op], draw: random.Random) -> None:
    """Cancel some of these ops, free some contexts early, feed the rest, and free what is left."""
    for op in ops:
        match draw.randrange(4):
            case 0:
                core.cancel(op.id)
            case 1:
                core.free(op.context)
    for op in ops:
        core.feed(op.id, len(op.tokens or ()), (1, 2), True)
    while core.busy:
        core.step()
    for op in ops:
        core.free(op.context)
    while core.busy:
        core.step()


def test_ten_thousand_requests_leave_only_the_pinned_context(make_bench: Make, fill: Make) -> None:
    """Requests come in bursts, and are fed, cancelled and freed at random. One context stays
    pinned. After each burst the pool is at its pinned level again, and memory does not grow."""
    draw = random.Random(7)
    core = make_bench(blocks=160, block_size=4, max_running=16).core
    core.submit(fill("pinned", [1, 2, 3, 1, 2, 3, 1]))
    while core.busy:
        core.step()
    before = sizes(core)
    assert (before["contexts"], before["held blocks"]) == (1, 2)
    warm = 0
    for first in range(0, COUNT, BURST):
        if first == WARM:
            warm = resident()
        ops = [make_op(first + i, draw) for i in range(BURST)]
        for op in ops:
            core.submit(op)
        for _ in range(draw.randint(0, 2)):
            core.step()
        finish(core, ops, draw)
        assert sizes(core) == before
    assert resident() - warm < MOST_GROWTH
    kept = [one for one in gc.get_objects() if type(one) in (Live, Sequence)]
    assert [one for one in kept if one.op.id.startswith("op")] == []
