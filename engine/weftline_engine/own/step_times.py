"""The times of a model's steps: measured at a start, and kept for later starts on this machine.

Each model, machine and way to compute has a file of its own: <home>/step_times/<key>.json.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.device import Array
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.step_budget import RowCost
from weftline_engine.own.embedded.step_inputs import (
    COUNTS,
    TOKENS,
    row_seconds,
    small_cache,
    step_cost,
    step_costs,
    step_profile,
)

# A start measures again where a step of one row takes more or less than this many times as long as
# it took when the times were measured: another machine, or other load.
ALIKE = 1.5
# Noise in one of the measurements lasts as long as the file.
MOST_AGE_S = 7 * 24 * 3600
MOST_FILES = 64
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a start measures. A step of one row takes `one_s` seconds.

    `row` is the cost of a prompt row. `drafts` are the costs of steps that verify drafts, or None
    without drafts. `profile` has pairs of tokens in flight and the seconds of a decode step. `room`
    counts the tokens of the KV cache that the measured steps could use.
    """

    one_s: float
    row: RowCost
    drafts: StepCosts | None
    profile: tuple[tuple[int, float], ...]
    room: int


class StepTimesFile:
    """The file of the times that depend on `facts`: the model, the kernels, cores and options."""

    def __init__(self, home: Path, *facts: object) -> None:
        self._folder = home / "step_times"
        key = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
        self._path = self._folder / f"{key}.json"

    def read(self, one_s: float) -> StepTimes | None:
        """The times of a start in the last week. None if there are none, or if a step of one row,
        which takes `one_s` seconds now, did not take about as long."""
        try:
            with self._path.open("rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > MOST_AGE_S:
                    return None
                found = msgspec.json.decode(file.read(_MOST_BYTES), type=StepTimes)
        except (OSError, msgspec.DecodeError):
            return None  # no file, or a damaged one: the next write replaces it
        return found if found.one_s / ALIKE <= one_s <= found.one_s * ALIKE else None

    def write(self, times: StepTimes) -> None:
        """Keep the times. The files that were written first go where there are too many. Raises
        OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=self._folder, suffix=".new")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(times))
        os.replace(path, self._path)
        with suppress(FileNotFoundError):  # another process removes old files, too
            kept = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in kept[:-MOST_FILES]:
                old.unlink()


class StepTimer:
    """Measures the steps of a model on the CPU, or takes the times that `file` has of them.

    The cost of a prompt row decides the size of a step, and so it is known before the KV cache.
    """

    def __init__(self, decoder: Model, block_size: int, file: StepTimesFile | None) -> None:
        self._decoder = decoder
        self._file = file
        cache = small_cache(decoder, block_size)
        self._one_s = row_seconds(decoder, cache, block_size)
        self._kept = None if file is None else file.read(self._one_s)
        kept = self._kept
        self.row = kept.row if kept else step_cost(decoder, cache, block_size, self._one_s)

    def times(self, cache: Array, config: SchedulerConfig, *, drafts: bool) -> StepTimes:
        """All times, for the KV cache `cache`. They are kept if they were measured now."""
        room = min(config.blocks * config.block_size, COUNTS[-1] * TOKENS)
        if self._kept is not None and self._kept.room == room:
            return self._kept
        costs = step_costs(self._decoder, cache, config) if drafts else None
        profile = step_profile(self._decoder, cache, config)
        times = StepTimes(self._one_s, self.row, costs, profile, room)
        try:
            if self._file is not None:
                self._file.write(times)
        except OSError as error:
            print(f"engine: the next start measures all steps again: {error}", file=sys.stderr)
        return times
