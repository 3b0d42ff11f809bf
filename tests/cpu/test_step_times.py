"""A start measures the steps of a model, and later starts take what it measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.own import step_times
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.embedded.step_budget import RowCost
from weftline_engine.own.step_times import MOST_FILES, StepTimer, StepTimes, StepTimesFile
from weftline_engine.transport.process import ProcessEngine

TIMES = StepTimes(
    one_s=0.03,
    row=RowCost(0.02, 0.01),
    drafts=StepCosts(((1, 0.03), (2, 0.05)), 512, 1e-6),
    profile=((512, 0.03), (2048, 0.06)),
    room=2048,
)


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Each model, machine and way to compute has its own."""
    StepTimesFile(tmp_path, "model", 2).write(TIMES)
    assert StepTimesFile(tmp_path, "model", 2).read(0.03) == TIMES
    assert StepTimesFile(tmp_path, "model", 4).read(0.03) is None
    assert os.listdir(tmp_path) == ["step_times"]


@pytest.mark.parametrize(
    ("one_s", "holds"), [(0.0199, False), (0.0201, True), (0.0449, True), (0.0451, False)]
)
def test_a_start_at_another_speed_does_not_take_them(
    tmp_path: Path, one_s: float, holds: bool
) -> None:
    """A step of one row took 30 ms. It may take from 20 to 45 ms now."""
    file = StepTimesFile(tmp_path, "model")
    file.write(TIMES)
    assert (file.read(one_s) is not None) == holds


def test_they_hold_for_a_week(tmp_path: Path) -> None:
    file = StepTimesFile(tmp_path, "model")
    file.write(TIMES)
    [path] = (tmp_path / "step_times").iterdir()
    for days, holds in ((6.9, True), (7.1, False)):
        then = time.time() - days * 24 * 3600
        os.utime(path, (then, then))
        assert (file.read(0.03) == TIMES) == holds


@pytest.mark.parametrize("text", ["", "{", "[]", '{"one_s": "0.03"}', "\x00" * 100])
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    file = StepTimesFile(tmp_path, "model")
    file.write(TIMES)
    [path] = (tmp_path / "step_times").iterdir()
    path.write_text(text)
    assert file.read(0.03) is None
    file.write(TIMES)
    assert file.read(0.03) == TIMES


def test_the_oldest_files_go(tmp_path: Path) -> None:
    """At most 64 are kept."""
    for number in range(MOST_FILES + 2):
        StepTimesFile(tmp_path, number).write(TIMES)
        for path in (tmp_path / "step_times").iterdir():  # so that no two are of one moment
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**9,) * 2)
    found = [StepTimesFile(tmp_path, number).read(0.03) for number in range(MOST_FILES + 2)]
    assert found == [None, None] + [TIMES] * MOST_FILES


def _start(core: Any, file: StepTimesFile | None) -> tuple[StepTimes, int]:
    """The times of a start, and how many steps it ran."""
    decoder, steps = core.worker.decoder, 0
    real = decoder.forward

    def forward(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return real(*given)

    decoder.forward = forward
    try:
        times = StepTimer(decoder, core.config.block_size, file).times(
            core.cache, core.config, drafts=True
        )
    finally:
        decoder.forward = real
    return times, steps


def test_a_second_start_runs_steps_of_one_row_alone(
    make_bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs at most four, which compare the speed. With another KV cache it measures again."""
    monkeypatch.setattr(step_times, "ALIKE", 1e6)  # this machine's speed may change meanwhile
    core = make_bench(blocks=256).core
    file = StepTimesFile(tmp_path, "model")
    first, measured = _start(core, file)
    assert first.room == 256 * 16 and first.drafts is not None
    assert [tokens for tokens, _ in first.profile] == [512, 2048]
    times, steps = _start(core, file)
    assert times == first
    assert steps <= 4 < 20 < measured
    file.write(replace(times, room=512))
    assert _start(core, file)[1] > 20


def test_a_home_that_cannot_be_written_costs_time_alone(
    make_bench: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = make_bench(blocks=256).core
    (tmp_path / "step_times").write_text("a file where a folder should be")
    times, _ = _start(core, StepTimesFile(tmp_path, "model"))
    assert times.profile
    assert "the next start measures all steps again" in capsys.readouterr().err


async def test_an_engine_announces_the_times_that_are_kept(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child writes one file, and a second one finds it or replaces it."""
    monkeypatch.setenv("WEFTLINE_HOME", str(tmp_path))
    for _ in range(2):
        engine = ProcessEngine(EmbeddedConfig(model=tiny_directory, kv_tokens=2048))
        description = await engine.start()
        await engine.close()
        [path] = (tmp_path / "step_times").iterdir()
        kept = msgspec.json.decode(path.read_bytes(), type=StepTimes)
        costs = description.kv_costs
        assert description.step_profile == kept.profile
        assert costs is not None and costs.fill_s == kept.row.row_s
