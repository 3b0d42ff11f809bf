"""Sizes of tests that repeat one subject on a real model, by the speed of this machine."""

from __future__ import annotations

import time
from functools import cache

import torch

# Decoding reads every weight for each token, so its speed is that of reading memory. On machines
# that reach this with one thread the tests run at their full sizes.
FULL_SPEED_GBS = 12.0
_ROWS, _COLUMNS = 49_152, 576  # the largest matrix of SmolLM2-135M: 113 MB in float32
_TRIES = 8  # the best one counts, because other processes may use the cores too


@cache
def reading_speed() -> float:
    """GB/s at which one thread multiplies a matrix in float32 by a vector."""
    matrix, vector = torch.ones(_ROWS, _COLUMNS), torch.ones(_COLUMNS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = min(_seconds(matrix, vector) for _ in range(_TRIES))
    finally:
        torch.set_num_threads(threads)
    return matrix.numel() * matrix.element_size() / seconds / 1e9


def sized(full: int, floor: int) -> int:
    """How many repetitions to run: `full` on a fast machine, fewer on a slow one, at least
    `floor`."""
    return max(floor, min(full, round(full * reading_speed() / FULL_SPEED_GBS)))


def _seconds(matrix: torch.Tensor, vector: torch.Tensor) -> float:
    began = time.perf_counter()
    matrix @ vector
    return time.perf_counter() - began
