"""The latency profile that an engine measures when it starts (Parrot's Figure 10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weftline_engine.embedded.config import EmbeddedConfig
from weftline_engine.embedded.step import step_profile
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


async def test_the_child_announces_it(tiny_directory: Path) -> None:
    """The profile comes through the socket with the rest of the description."""
    engine = ProcessEngine(EmbeddedConfig(model=tiny_directory, dtype="float64", kv_tokens=2048))
    profile = (await engine.start()).step_profile
    await engine.close()
    assert [tokens for tokens, _ in profile] == [512, 2048]
