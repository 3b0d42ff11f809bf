"""The time that a benchmark may take: rows that would end after it are left out, and named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Budget:
    """The time that a run has. It ends with whole rows, and says which ones it has left out.

    A row of a busy machine took four times its quiet time, so no number of tasks alone keeps a
    quick run short.
    """

    def __init__(self, most_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._now = clock
        self._began = clock()
        self._longest: dict[str, float] = {}  # seconds of a kind's longest row so far
        self.left_out: list[str] = []

    @contextmanager
    def row(self, kind: str, name: str) -> Iterator[bool]:
        """Whether there is time for a row that takes as long as the longest one of its kind.

        The first one of a kind may take as long as the longest of all.
        """
        began = self._now()
        longest = self._longest.get(kind, max(self._longest.values(), default=0.0))
        needed = began - self._began + longest
        fits = self._most_s is None or needed <= self._most_s
        if not fits:
            self.left_out.append(name)
        yield fits
        if fits:
            took = self._now() - began
            self._longest[kind] = max(self._longest.get(kind, 0.0), took)
