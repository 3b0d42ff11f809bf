"""Turns a planned step into the input arrays of the model, and measures at start how long such
steps take (Parrot's Figure 10)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from weftline_engine.api import Kind, Op
from weftline_engine.bookkeeping.drafting.draft_counts import MOST_ROWS, StepCosts
from weftline_engine.bookkeeping.schedule.sequence import UNREAD, Sequence
from weftline_engine.bookkeeping.schedule.step_scheduler import Chunk, SchedulerConfig, StepPlan
from weftline_engine.own.embedded.device import Array
from weftline_engine.own.embedded.model.base import Late, Model, StepInput
from weftline_engine.own.embedded.step_budget import RowCost, cost_of
from weftline_kernels.work_list import SequenceRows, build

# Tokens of each sequence in the measured decode steps, about a chat. The number of sequences grows
# by powers of four, for at most BUDGET_S seconds.
TOKENS = 512
COUNTS = (1, 4, 16, 64)
BUDGET_S = 0.5
# Rows of one sequence in the measured steps that verify drafts. A second length shows how much
# longer attention takes than at TOKENS.
ROWS = (1, 2, 4, 8, MOST_ROWS)
LONG_TOKENS = 2048
COSTS_S = 1.0
# A step is measured so often at most, and not again after ENOUGH_S seconds of it. The quickest
# counts, because noise only adds time, and adds a smaller share of a long step. With Qwen3 1.7B's
# shape, three of each took a third of the start.
REPEATS, ENOUGH_S = 3, 0.1
PROMPT_ROWS = 64  # of the step that measures the seconds of a prompt row


@dataclass(frozen=True, slots=True)
class Unread:
    """The tokens of the last step, which the host has not read: `tokens_R` on the device, and the
    row of each op."""

    tokens_R: Array
    row_of: Mapping[str, int]


def step_input(
    plan: StepPlan, block_size: int, *, min_blocks_saved: int, unread: Unread | None = None
) -> StepInput:
    """Pack the chunks of a plan. `rows_R` are the rows whose logits are needed: for each chunk that
    samples, the row of its last token and those of its drafts. The tokens that the host has not
    read are in `unread`."""
    counts = np.array([chunk.rows for chunk in plan.chunks])
    firsts = np.cumsum(counts) - counts
    tokens = np.fromiter(
        itertools.chain.from_iterable(
            (*chunk.sequence.tokens[chunk.start : chunk.stop], *chunk.drafts)
            for chunk in plan.chunks
        ),
        np.int64,
        int(counts.sum()),
    )
    starts = np.array([chunk.start for chunk in plan.chunks])
    positions = np.arange(len(tokens)) + np.repeat(starts - firsts, counts)
    blocks = np.concatenate(
        [
            np.asarray(chunk.blocks, np.int64)[
                np.arange(chunk.start, chunk.start + chunk.rows) // block_size
            ]
            for chunk in plan.chunks
        ]
    )
    parts = [
        SequenceRows(chunk.blocks, int(first), int(count), chunk.start)
        for chunk, first, count in zip(plan.chunks, firsts, counts, strict=True)
    ]
    late: Late | None = None
    lacks_L = np.flatnonzero(tokens == UNREAD)
    if len(lacks_L):
        assert unread is not None, "the host has read all tokens of the last step"
        tokens[lacks_L] = 0
        ends = dict(zip((firsts + counts - 1).tolist(), plan.chunks, strict=True))
        names = [ends[row].sequence.op.id for row in lacks_L.tolist()]
        late = Late(lacks_L, np.array([unread.row_of[name] for name in names]), unread.tokens_R)
    wanted = np.array([1 + len(one.drafts) if one.samples else 0 for one in plan.chunks])
    return StepInput(
        tokens,
        positions,
        blocks * block_size + positions % block_size,
        np.repeat(firsts + counts - wanted, wanted) + _numbers(wanted),
        build(parts, block_size, min_blocks_saved=min_blocks_saved),
        late,
    )


def _numbers(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0 to n - 1 for each n of `counts`, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def row_seconds(decoder: Model, cache: Array, block_size: int) -> float:
    """The measured seconds of a step of one row, after one that brings the weights into memory."""
    _prompt_seconds(decoder, cache, block_size, 1)
    return least(partial(_prompt_seconds, decoder, cache, block_size, 1))


def step_cost(decoder: Model, cache: Array, block_size: int, one_s: float) -> RowCost:
    """The measured cost of a prompt row, where a step of one row takes `one_s` seconds.

    Measuring takes 0.3 s for SmolLM2-135M, 2 cores and AVX2.
    """
    rows = min(PROMPT_ROWS, decoder.config.context_limit)
    return cost_of(one_s, least(partial(_prompt_seconds, decoder, cache, block_size, rows)), rows)


def small_cache(decoder: Model, block_size: int, rows: int = PROMPT_ROWS) -> Array:
    """A KV cache for a prompt of `rows` tokens, or of as many as the model takes."""
    return decoder.new_cache(-(-min(rows, decoder.config.context_limit) // block_size), block_size)


def _prompt_seconds(decoder: Model, cache: Array, block_size: int, count: int) -> float:
    """The seconds of a step that computes a prompt of `count` tokens."""
    blocks = tuple(range(-(-count // block_size)))
    op = Op(id="cost", kind=Kind.FILL, context="cost")
    sequence = Sequence(op, 0, tokens=[0] * count)
    chunks = (Chunk(sequence, 0, count, blocks, samples=True),)
    return _seconds(decoder, cache, block_size, chunks)


def least(seconds: Callable[[], float]) -> float:
    """The quickest of a few measurements, of which there are fewer if they take long."""
    found = spent = seconds()
    for _ in range(REPEATS - 1):
        if spent >= ENOUGH_S:
            break
        one = seconds()
        found, spent = min(found, one), spent + one
    return found


def largest_step(decoder: Model, rows: int, block_size: int) -> None:
    """Compute a prompt of `rows` tokens, so that the device's allocator holds the memory that such
    a step takes, and what is free then is free for the KV cache."""
    rows = min(rows, decoder.config.context_limit)
    _prompt_seconds(decoder, small_cache(decoder, block_size, rows), block_size, rows)


def chunk_cost(decoder: Model, cache: Array, config: SchedulerConfig) -> RowCost:
    """The measured cost of a prompt row on a GPU, where a step takes far more rows before it takes
    longer: from a step of one row, and from the largest step of one prompt.

    The steps write into free blocks of `cache`, as those of `step_profile` do.
    """
    size = config.block_size
    rows = min(config.step_tokens, decoder.config.context_limit, config.blocks * size)

    def seconds(count: int) -> float:
        _prompt_seconds(decoder, cache, size, count)  # compiles the kernels
        return min(_prompt_seconds(decoder, cache, size, count) for _ in range(REPEATS))

    return cost_of(seconds(1), seconds(rows), rows)


def step_profile(
    decoder: Model, cache: Array, config: SchedulerConfig
) -> tuple[tuple[int, float], ...]:
    """Pairs of tokens in flight and seconds of a step, ascending in both.

    Only the time matters, so the keys and values are whatever the pool holds. The steps write into
    free blocks, and leave finite numbers there.
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
        seconds.append(least(partial(_seconds, decoder, cache, size, chunks)))
        if len(seconds) > 1 and time.perf_counter() > ends:
            break
    tokens = (count * length for count in counts)
    return tuple(zip(tokens, itertools.accumulate(seconds, max), strict=False))


def step_costs(
    decoder: Model,
    cache: Array,
    config: SchedulerConfig,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCosts | None:
    """The measured costs of steps with several rows of one sequence, as in verifying drafts. None
    if the cache has no room for a sequence of TOKENS. No more rows are tried after COSTS_S
    seconds."""
    size = config.block_size
    most = min(config.blocks * size, decoder.config.context_limit)
    if most < TOKENS:
        return None

    def measure(length: int, rows: int) -> float:
        chunk = _decoding(0, length, -(-length // size), drafts=rows - 1)
        return least(partial(_seconds, decoder, cache, size, (chunk,), clock))

    measure(TOKENS, 1)
    ends = clock() + COSTS_S
    seconds: list[float] = []
    for rows in ROWS:
        seconds.append(measure(TOKENS, rows))
        if len(seconds) > 1 and clock() > ends:
            break
    seconds = list(itertools.accumulate(seconds, max))
    attend_s = 0.0
    if most >= LONG_TOKENS:
        rows = ROWS[len(seconds) - 1]
        longer = measure(LONG_TOKENS, rows) - measure(LONG_TOKENS, 1) - (seconds[-1] - seconds[0])
        attend_s = max(0.0, longer / (rows - 1) / (LONG_TOKENS - TOKENS))
    return StepCosts(tuple(zip(ROWS, seconds, strict=False)), TOKENS, attend_s)


def _decoding(number: int, length: int, blocks: int, drafts: int = 0) -> Chunk:
    """A chunk that decodes a sequence with blocks of its own. Its last `drafts` are drafts."""
    op = Op(id=str(number), kind=Kind.GENERATE, context=str(number))
    sequence = Sequence(op, number, tokens=[0] * length)
    table = tuple(range(number * blocks, (number + 1) * blocks))
    stop = length - drafts
    return Chunk(sequence, stop - 1, stop, table, samples=True, drafts=(0,) * drafts)


def _seconds(
    decoder: Model,
    cache: Array,
    block_size: int,
    chunks: tuple[Chunk, ...],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    began = clock()
    least = decoder.min_blocks_saved
    step = step_input(StepPlan(chunks), block_size, min_blocks_saved=least)
    with decoder.device.computing():
        decoder.forward(step, cache)[0, 0].item()  # waits for the device
    return clock() - began
