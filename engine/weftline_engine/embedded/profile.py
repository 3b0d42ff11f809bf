"""Measures at start how a decode step slows down with the tokens in flight (Parrot's Figure 10)."""

from __future__ import annotations

import time
from itertools import accumulate

import torch
from torch import Tensor

from weftline_engine.api import Kind, Op
from weftline_engine.embedded.batch import step_input
from weftline_engine.embedded.model import Model
from weftline_engine.embedded.scheduler import Chunk, SchedulerConfig, StepPlan
from weftline_engine.embedded.sequence import Sequence

# Sequences of a chat's length, as many as each power of four, while that takes less than so long.
TOKENS = 512
COUNTS = (1, 4, 16, 64)
BUDGET_S = 0.5
REPEATS = 3  # of which the quickest counts: noise only adds


@torch.inference_mode()
def step_profile(
    decoder: Model, cache: Tensor, config: SchedulerConfig
) -> tuple[tuple[int, float], ...]:
    """Pairs of tokens in flight and seconds of a step, ascending in both.

    The keys and values are whatever the pool holds: only time matters. The pages that the steps
    write belong to nobody, and what they leave there is finite.
    """
    length = min(TOKENS, config.blocks * config.block_size, decoder.config.context_limit)
    blocks = -(-length // config.block_size)
    counts = [n for n in COUNTS if n <= config.max_running and n * blocks <= config.blocks]
    seconds: list[float] = []
    _seconds(decoder, cache, config, (_decoding(0, length, blocks),))  # the weights come to memory
    ends = time.perf_counter() + BUDGET_S
    for count in counts:
        chunks = tuple(_decoding(number, length, blocks) for number in range(count))
        seconds.append(min(_seconds(decoder, cache, config, chunks) for _ in range(REPEATS)))
        if len(seconds) > 1 and time.perf_counter() > ends:
            break
    tokens = (count * length for count in counts)
    return tuple(zip(tokens, accumulate(seconds, max), strict=False))


def _decoding(number: int, length: int, blocks: int) -> Chunk:
    """The last token of a sequence whose pages are its own."""
    op = Op(id=str(number), kind=Kind.GENERATE, context=str(number))
    sequence = Sequence(op, number, tokens=[0] * length)
    pages = tuple(range(number * blocks, (number + 1) * blocks))
    return Chunk(sequence, length - 1, length, pages, samples=True)


def _seconds(
    decoder: Model, cache: Tensor, config: SchedulerConfig, chunks: tuple[Chunk, ...]
) -> float:
    began = time.perf_counter()
    least = decoder.min_pages_saved
    step = step_input(StepPlan(chunks), config.block_size, min_pages_saved=least)
    decoder.forward(step, cache)[0, 0].item()  # waits for the device
    return time.perf_counter() - began
