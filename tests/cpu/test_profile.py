"""The latency profile that an engine measures when it starts (Parrot's Figure 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weftline_engine.api import KvCosts
from weftline_engine.bookkeeping.schedule.step_scheduler import Chunk
from weftline_engine.own.embedded import step_inputs
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.embedded.costs import kv_costs
from weftline_engine.own.embedded.host_device import HOST
from weftline_engine.own.embedded.step_budget import RowCost
from weftline_engine.own.embedded.step_inputs import step_profile
from weftline_engine.transport.process import ProcessEngine


@pytest.mark.parametrize(
    ("blocks", "max_running", "tokens"),
    [(256, 64, (512, 2048)), (512, 64, (512, 2048, 8192)), (256, 3, (512,)), (16, 64, (256,))],
)
def test_it_has_a_point_for_each_batch_that_fits(
    make_bench: Callable[..., Any], blocks: int, max_running: int, tokens: tuple[int, ...]
) -> None:
    """Batches have 1, 4 and 16 sequences. More tokens never take less time."""
    bench = make_bench(blocks=blocks, max_running=max_running)
    core = bench.core
    profile = step_profile(core.worker.decoder, core.cache, core.config)
    assert tuple(point for point, _ in profile) == tokens
    seconds = [second for _, second in profile]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_it_changes_no_answer(
    make_bench: Callable[..., Any],
    generate: Callable[..., Any],
    tokens_of: Callable[[int, int], tuple[int, ...]],
) -> None:
    """The measurement leaves data in the pool's blocks that is never read."""
    fresh, measured = make_bench(), make_bench()
    core = measured.core
    step_profile(core.worker.decoder, core.cache, core.config)
    ops = [generate(str(i), tokens_of(i, 40)) for i in range(6)]
    assert [one.tokens for one in measured.run(*ops)] == [one.tokens for one in fresh.run(*ops)]


@pytest.mark.parametrize("seconds", [[0.01, 0.03, 0.02], [0.06, 0.05], [0.2]])
def test_long_steps_are_measured_less_often(seconds: list[float]) -> None:
    """The quickest of three counts, of two that take 0.1 s together, or the only one of 0.2 s."""
    left = iter([*seconds, 0.0, 0.0])
    assert step_inputs.least(lambda: next(left)) == min(seconds)
    assert list(left) == [0.0, 0.0]


async def test_the_child_announces_it(tiny_directory: Path) -> None:
    """The profile comes through the socket with the rest of the description."""
    engine = ProcessEngine(EmbeddedConfig(model=tiny_directory, dtype="float64", kv_tokens=2048))
    description = await engine.start()
    await engine.close()
    assert [tokens for tokens, _ in description.step_profile] == [512, 2048]
    costs = description.kv_costs
    assert costs is not None and costs.fill_s > 0 < costs.copy_s
    assert costs.host_tokens == 0  # on a CPU


def test_the_costs_of_the_cache(make_bench: Callable[..., Any]) -> None:
    """16 blocks of 16 tokens take 2 s for both ways: 1/256 s a token. The blocks do not change."""
    core = make_bench(blocks=32).core
    core.cache[:] = np.random.default_rng(0).normal(size=core.cache.shape)
    before = core.cache.copy()
    times = iter([0.0, 9.0, 10.0, 12.0, 20.0, 25.0])
    found = kv_costs(RowCost(0.5, 0.25), core.cache, HOST, core.config, 100, lambda: next(times))
    size = core.config.block_size
    assert found == KvCosts(
        step_s=0.5,
        fill_s=0.25,
        chunk=core.config.step_tokens,
        copy_s=1 / (16 * size),
        host_tokens=100,
    )
    assert np.array_equal(core.cache, before)
    assert kv_costs(None, core.cache, HOST, core.config) is None


def test_the_cost_of_a_prompt_is_that_of_the_largest_step(
    make_bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU: a step of one row takes 1 ms and one of 64 rows 2 ms, so a row takes 1/63 ms. The
    first step of each size compiles, and does not count."""
    core = make_bench(blocks=32).core
    rows: list[int] = []

    def seconds(_: object, __: object, ___: int, chunks: tuple[Chunk, ...]) -> float:
        rows.append(sum(chunk.rows for chunk in chunks))
        return 9.0 if rows.count(rows[-1]) == 1 else {1: 0.001, 64: 0.002}[rows[-1]]

    monkeypatch.setattr(step_inputs, "_seconds", seconds)
    config = replace(core.config, max_running=4, step_tokens=64)
    found = step_inputs.chunk_cost(core.worker.decoder, core.cache, config)
    assert rows == [1] * 4 + [64] * 4
    assert (found.base_s, found.row_s) == pytest.approx((0.001 - 0.001 / 63, 0.001 / 63))


def test_the_largest_step_is_computed_before_the_cache_is_sized(
    make_bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one prompt of all rows, or of the model's whole context, over a cache of its own."""
    decoder = make_bench(blocks=4).core.worker.decoder
    seen: list[tuple[int, int]] = []
    real = decoder.forward

    def forward(given: Any, cache: Any) -> Any:
        seen.append((len(given.tokens_T), cache.shape[3]))
        return real(given, cache)

    monkeypatch.setattr(decoder, "forward", forward)
    step_inputs.largest_step(decoder, 100, 16)
    step_inputs.largest_step(decoder, 10**6, 16)
    limit = decoder.config.context_limit
    assert seen == [(100, 7), (limit, -(-limit // 16))]
