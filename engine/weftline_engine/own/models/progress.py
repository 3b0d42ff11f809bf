"""Shows progress of downloads and conversions: bars on a terminal, lines in a log, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID


class StageMeter(Protocol):
    """The progress of one stage."""

    def at(self, done: int, total: int | None = None) -> None:
        """Report that `done` of `total` units are finished. `total` None keeps the last total."""
        ...


class StageDisplay(Protocol):
    """Shows stages."""

    def stage(self, title: str, total: int | None, unit: str) -> AbstractContextManager[StageMeter]:
        """Open a stage of `total` units, such as "bytes". `total` None means not known yet."""
        ...


class Silent:
    """Shows nothing. It is also its own meter."""

    @contextmanager
    def stage(self, title: str, total: int | None, unit: str) -> Iterator[StageMeter]:
        yield self

    def at(self, done: int, total: int | None = None) -> None:
        pass


class LogDisplay:
    """Prints a line when a stage begins and a line when it ends, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @contextmanager
    def stage(self, title: str, total: int | None, unit: str) -> Iterator[StageMeter]:
        meter = _Count()
        print(f"{title} ...", file=self.stream, flush=True)
        yield meter
        print(f"{title}: {_amount(meter.done, unit)}", file=self.stream, flush=True)


class _Count:
    def __init__(self) -> None:
        self.done = 0

    def at(self, done: int, total: int | None = None) -> None:
        self.done = done


class Bars:
    """Draws a bar for each stage, with rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self.console = Console(file=stream)

    @contextmanager
    def stage(self, title: str, total: int | None, unit: str) -> Iterator[StageMeter]:
        from rich import progress as rich

        amount = rich.DownloadColumn() if unit == "bytes" else rich.MofNCompleteColumn()
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            amount,
            rich.TimeElapsedColumn(),
        )
        with rich.Progress(*columns, console=self.console) as bars:
            task = bars.add_task(title, total=total)
            yield _Bar(bars, task)


class _Bar:
    def __init__(self, bars: RichBars, task: TaskID) -> None:
        self.bars = bars
        self.task = task

    def at(self, done: int, total: int | None = None) -> None:
        self.bars.update(self.task, completed=done, total=total)


def for_stream(stream: TextIO | None = None) -> StageDisplay:
    """Return bars if `stream` is a terminal and rich is installed, else lines.

    `stream` None is standard error.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        try:
            return Bars(stream)
        except ImportError:
            return LogDisplay(stream)
    return LogDisplay(stream)


def _amount(count: int, unit: str) -> str:
    if unit == "bytes":
        return f"{count / 1e6:.1f} MB"
    return f"{count} {unit}"
