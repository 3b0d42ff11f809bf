"""Turns a planned step into the tensors that the model runs on, and measures at start what such a
step takes (Parrot's Figure 10)."""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch
from torch import Tensor

from weftline_engine.api import Kind, Op
from weftline_engine.bookkeeping.schedule.scheduler import Chunk, SchedulerConfig, StepPlan
from weftline_engine.bookkeeping.schedule.sequence import Sequence
from weftline_engine.embedded.budget import StepCost, cost_of
from weftline_engine.embedded.model.base import Model, StepInput
from weftline_kernels.work_list import Rows, build

# Sequences have the length of a chat. Their number grows by powers of four, for at most BUDGET_S.
TOKENS = 512
COUNTS = (1, 4, 16, 64)
BUDGET_S = 0.5
REPEATS = 3  # the quickest counts, because noise only adds
PROMPT_ROWS = 64  # of the step that tells what a row costs


def step_input(plan: StepPlan, page_size: int, *, min_blocks_saved: int) -> StepInput:
    """Pack the chunks of a plan; `rows_R` are the last rows of those that sample."""
    counts = np.array([chunk.stop - chunk.start for chunk in plan.chunks])
    firsts = np.cumsum(counts) - counts
    tokens = np.fromiter(
        itertools.chain.from_iterable(
            chunk.sequence.tokens[chunk.start : chunk.stop] for chunk in plan.chunks
        ),
        np.int64,
        int(counts.sum()),
    )
    starts = np.array([chunk.start for chunk in plan.chunks])
    positions = np.arange(len(tokens)) + np.repeat(starts - firsts, counts)
    pages = np.concatenate(
        [
            np.asarray(chunk.blocks, np.int64)[np.arange(chunk.start, chunk.stop) // page_size]
            for chunk in plan.chunks
        ]
    )
    parts = [
        Rows(chunk.blocks, int(first), int(count), chunk.start)
        for chunk, first, count in zip(plan.chunks, firsts, counts, strict=True)
    ]
    samples = np.array([chunk.samples for chunk in plan.chunks])
    return StepInput(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(pages * page_size + positions % page_size),
        torch.from_numpy((firsts + counts - 1)[samples]),
        build(parts, page_size, min_blocks_saved=min_blocks_saved),
    )


@torch.inference_mode()
def step_cost(decoder: Model, page_size: int) -> StepCost:
    """What a row of a prompt costs here, in 0.3 s for SmolLM2-135M on two cores with AVX2.

    A slow model is measured once instead of twice.
    """
    rows = min(PROMPT_ROWS, decoder.config.context_limit)
    pages = tuple(range(-(-rows // page_size)))
    cache = decoder.new_cache(len(pages), page_size)

    def seconds(count: int) -> float:
        op = Op(id="cost", kind=Kind.FILL, context="cost")
        sequence = Sequence(op, 0, tokens=[0] * count)
        chunks = (Chunk(sequence, 0, count, pages, samples=True),)
        return _seconds(decoder, cache, page_size, chunks)

    seconds(1)  # brings the weights into memory
    one, many = min(seconds(1), seconds(1)), seconds(rows)
    if many < BUDGET_S:
        many = min(many, seconds(rows))
    return cost_of(one, many, rows)


@torch.inference_mode()
def step_profile(
    decoder: Model, cache: Tensor, config: SchedulerConfig
) -> tuple[tuple[int, float], ...]:
    """Pairs of tokens in flight and seconds of a step, ascending in both.

    The keys and values are whatever the pool holds: only the time matters. The steps write into
    free pages, and leave finite numbers there.
    """
    length = min(TOKENS, config.blocks * config.block_size, decoder.config.context_limit)
    blocks = -(-length // config.block_size)
    counts = [n for n in COUNTS if n <= config.max_running and n * blocks <= config.blocks]
    seconds: list[float] = []
    size = config.block_size
    # The first step brings the weights into memory.
    _seconds(decoder, cache, size, (_decoding(0, length, blocks),))
    ends = time.perf_counter() + BUDGET_S
    for count in counts:
        chunks = tuple(_decoding(number, length, blocks) for number in range(count))
        seconds.append(min(_seconds(decoder, cache, size, chunks) for _ in range(REPEATS)))
        if len(seconds) > 1 and time.perf_counter() > ends:
            break
    tokens = (count * length for count in counts)
    return tuple(zip(tokens, itertools.accumulate(seconds, max), strict=False))


def _decoding(number: int, length: int, blocks: int) -> Chunk:
    """The last token of a sequence whose pages are its own."""
    op = Op(id=str(number), kind=Kind.GENERATE, context=str(number))
    sequence = Sequence(op, number, tokens=[0] * length)
    pages = tuple(range(number * blocks, (number + 1) * blocks))
    return Chunk(sequence, length - 1, length, pages, samples=True)


def _seconds(decoder: Model, cache: Tensor, page_size: int, chunks: tuple[Chunk, ...]) -> float:
    began = time.perf_counter()
    least = decoder.min_blocks_saved
    step = step_input(StepPlan(chunks), page_size, min_blocks_saved=least)
    decoder.forward(step, cache)[0, 0].item()  # waits for the device
    return time.perf_counter() - began
