"""Turns a planned step into the tensors that the model runs on."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from weftline_engine.embedded.model import StepInput
from weftline_engine.embedded.scheduler import StepPlan
from weftline_kernels.work_list import Rows, build


def step_input(plan: StepPlan, page_size: int, *, min_pages_saved: int) -> StepInput:
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
        build(parts, page_size, min_blocks_saved=min_pages_saved),
    )
