"""Decides how many tokens a step computes, from what a prompt row costs on this machine."""

from __future__ import annotations

from dataclasses import dataclass

# A step of prompts should end within this time, because a verb or a new request waits for it. With
# AVX-512 on two cores, 512 rows of SmolLM2-135M take 0.45 s.
STEP_S = 0.5
# A step in which another application decodes. There 96 rows took 93 ms. The mean of ten chains of
# eight calls ended 17 % earlier than with 512 rows, the last chain 5 % later.
BESIDE_S = 0.1
# A step of prompts that are filled before all their inputs exist. A call that somebody waits for
# may come during such a step, and waits for its end. A block of 16 rows is the least.
EARLY_S = 0.05
MOST_ROWS, MOST_BESIDE = 512, 96
# With fewer rows the weights are read too often: a row costs 16 % more with 64 rows than with 512.
LEAST_ROWS, LEAST_BESIDE, LEAST_EARLY = 64, 32, 16
# The matrix units of a GPU need long steps. It is not measured.
GPU_TOKENS, GPU_EARLY = 2048, 512


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step on a CPU: one part for the weights, and one for each row of a prompt."""

    base_s: float
    row_s: float

    def rows(self, bound_s: float) -> int:
        """The rows that a step computes within `bound_s`."""
        return max(0, int((bound_s - self.base_s) / self.row_s))


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens of a step, tokens of prompts in a step in which another application decodes, and
    tokens of prompts that are not complete."""

    step_tokens: int
    beside_tokens: int
    early_tokens: int


def cost_of(one_s: float, many_s: float, rows: int) -> StepCost:
    """The cost from the seconds of a step of one row and of a step of `rows`."""
    row_s = max((many_s - one_s) / (rows - 1), 1e-6)
    return StepCost(max(one_s - row_s, 0.0), row_s)


def budget(cost: StepCost | None, max_running: int, wanted: int | None) -> Budget:
    """The budget of a step. `cost` is None on a GPU, `wanted` is the user's number of tokens.

    Sequences that decode take tokens of a step, too, so there are always some left for a prompt.
    """
    if cost is None:
        step = wanted or GPU_TOKENS
        return Budget(step, step, min(step, GPU_EARLY))
    rows = min(max(cost.rows(STEP_S), LEAST_ROWS), MOST_ROWS)
    step = wanted or max(rows, max_running + LEAST_ROWS)
    beside = min(max(cost.rows(BESIDE_S), LEAST_BESIDE), MOST_BESIDE)
    early = min(max(cost.rows(EARLY_S), LEAST_EARLY), MOST_ROWS)
    return Budget(step, min(step, beside), min(step, early))
