"""Decides how many tokens a step computes, from the measured time of a prompt row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, StepSeconds

# The most seconds of a step of prompts, because a verb or a new request waits for its end. With
# AVX-512 on two cores, 512 rows of SmolLM2-135M take 0.45 s.
STEP_S = 0.5
# The most seconds of a step in which another application decodes. There 96 rows took 93 ms. Ten
# chains of eight calls ended 17 % earlier in the mean than with 512 rows, and the last one 5 %
# later.
BESIDE_S = 0.1
# The most seconds of a step that computes open prompts. A call that a reader waits for may come
# during the step, and waits for its end. The step has at least one block, 16 rows.
EARLY_S = 0.05
MOST_ROWS, MOST_BESIDE = 512, 96
# The fewest rows of these steps. With fewer the weights are read too often: a row takes 16 % longer
# with 64 rows than with 512.
LEAST_ROWS, LEAST_BESIDE, LEAST_EARLY = 64, 32, 16
# Tokens of these steps on a GPU, whose matrix units need long steps. They were not measured.
GPU_TOKENS, GPU_EARLY = 2048, 512


@dataclass(frozen=True, slots=True)
class RowCost:
    """Seconds of a step: a part for the weights, and a part for each prompt row."""

    base_s: float
    row_s: float

    def rows(self, bound_s: float) -> int:
        """How many rows a step computes within `bound_s` seconds."""
        return max(0, int((bound_s - self.base_s) / self.row_s))


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The most tokens of a step, of prompts in a step in which another application decodes, and of
    open prompts in a step."""

    step_tokens: int
    beside_tokens: int
    early_tokens: int


def cost_of(one_s: float, many_s: float, rows: int) -> RowCost:
    """The cost from the seconds of a step of one row and of a step of `rows`."""
    row_s = max((many_s - one_s) / (rows - 1), 1e-6)
    return RowCost(max(one_s - row_s, 0.0), row_s)


def budget(cost: RowCost | None, max_running: int, wanted: int | None) -> StepBudget:
    """The budget of a step. `cost` is None on a GPU. `wanted` is the user's number of tokens.

    A step always has more tokens than `max_running`, so that some are left for a prompt when all
    sequences decode.
    """
    if cost is None:
        step = wanted or GPU_TOKENS
        return StepBudget(step, step, min(step, GPU_EARLY))
    rows = min(max(cost.rows(STEP_S), LEAST_ROWS), MOST_ROWS)
    step = wanted or max(rows, max_running + LEAST_ROWS)
    beside = min(max(cost.rows(BESIDE_S), LEAST_BESIDE), MOST_BESIDE)
    early = min(max(cost.rows(EARLY_S), LEAST_EARLY), MOST_ROWS)
    return StepBudget(step, min(step, beside), min(step, early))


def itl_limit(
    row: RowCost,
    profile: Sequence[tuple[int, float]],
    drafts: StepCosts | None,
    device: str,
) -> ItlLimit:
    """The limit that prompts keep beside answers, from what a start has measured.

    On the CPU it is the time of a step of prompts, so it shortens those behind many tokens alone:
    weights are read for as long as 15 rows take, and shorter steps read them too often.
    """
    token_s = 0.0
    if len(profile) > 1:
        (few, quick), (many, slow) = profile[0], profile[-1]
        token_s = (slow - quick) / (many - few)
    attend_s = 0.0 if drafts is None else drafts.attend_s
    cost = StepSeconds(step_s=row.base_s, fill_s=row.row_s, token_s=token_s, attend_s=attend_s)
    return ItlLimit(cost, STEP_S, LEAST_ROWS) if device == "cpu" else ItlLimit(cost)
