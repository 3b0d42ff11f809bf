"""How many tokens a step computes: what a row costs decides it, within stated bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.world import TWO_CORES
from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.schedule.step_seconds import (
    ItlLimit,
    PromptSeconds,
    StepSeconds,
    attended_by,
)
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.step_budget import (
    BESIDE_S,
    EARLY_S,
    STEP_S,
    RowCost,
    StepBudget,
    budget,
    cost_of,
    itl_limit,
)
from weftline_engine.own.embedded.step_inputs import row_seconds, small_cache, step_cost

AVX512 = RowCost(base_s=0.013, row_s=0.0009)


@pytest.mark.parametrize(
    ("cost", "max_running", "wanted", "expected"),
    [
        (AVX512, 64, None, StepBudget(512, 96, 41)),
        (RowCost(0.020, 0.0016), 64, None, StepBudget(300, 50, 18)),
        (RowCost(0.020, 0.0080), 32, None, StepBudget(96, 32, 16)),
        (RowCost(0.020, 0.0080), 8, None, StepBudget(72, 32, 16)),
        (RowCost(2.0, 0.1), 8, None, StepBudget(72, 32, 16)),
        (AVX512, 600, None, StepBudget(664, 96, 41)),
        (AVX512, 64, 80, StepBudget(80, 80, 41)),
        (AVX512, 64, 2000, StepBudget(2000, 96, 41)),
        (None, 64, None, StepBudget(2048, 2048, 512)),
        (None, 64, 256, StepBudget(256, 256, 256)),
    ],
)
def test_steps_are_sized_by_the_cost_of_a_row(
    cost: RowCost | None, max_running: int, wanted: int | None, expected: StepBudget
) -> None:
    """Between 64 and 512 rows on a CPU, and room for a prompt beside all sequences that run."""
    assert budget(cost, max_running, wanted) == expected


def test_a_step_keeps_its_bound() -> None:
    """The chosen number of rows fits the time, and one more does not."""
    cost = RowCost(0.020, 0.0016)
    chosen = budget(cost, 64, None)
    bounds = (
        (chosen.step_tokens, STEP_S),
        (chosen.beside_tokens, BESIDE_S),
        (chosen.early_tokens, EARLY_S),
    )
    for rows, bound in bounds:
        assert cost.base_s + rows * cost.row_s <= bound < cost.base_s + (rows + 1) * cost.row_s


def test_a_long_prompt_keeps_the_bound_beside_an_answer() -> None:
    """A row takes 0.9 ms, and 0.5 us for each token before it. So a step has fewer rows behind
    8,000 tokens, and within the bound. Without drafts attention was not measured."""
    profile, drafts = ((512, 0.02), (2048, 0.023)), StepCosts(((1, 0.02),), 512, 0.5e-6)
    limit = itl_limit(AVX512, profile, drafts, "cpu")
    room = [PromptSeconds(limit, 1, 500).allow(behind, 512) for behind in (0, 8000)]
    assert room == [475, 95]
    assert limit.cost.seconds(95, 1, 8595, attended_by(95, 8000)) <= STEP_S
    without = itl_limit(AVX512, (), None, "cuda")
    assert without == ItlLimit(StepSeconds(step_s=0.013, fill_s=0.0009))


def test_two_steps_tell_the_cost() -> None:
    """Noise may make the longer step the quicker one; a row's cost stays positive."""
    found = cost_of(0.02, 0.083, 64)
    assert found.row_s == pytest.approx(0.001) and found.base_s == pytest.approx(0.019)
    assert cost_of(0.02, 0.01, 64).row_s > 0


def test_the_cost_is_measured_with_the_model(tiny_directory: Path, tmp_path: Path) -> None:
    """A tiny model is so quick that its steps have the most rows."""
    decoder = load_decoder(tiny_directory, "float32", 16, tmp_path)
    cache = small_cache(decoder, 16)
    found = step_cost(decoder, cache, 16, row_seconds(decoder, cache, 16))
    assert 0 < found.row_s < 0.01
    assert found.base_s >= 0


def test_the_simulator_has_the_short_steps_of_a_fast_cpu() -> None:
    """The simulated engine and the measured budget name the same number of tokens."""
    assert budget(AVX512, 64, None).beside_tokens == TWO_CORES.beside_tokens
