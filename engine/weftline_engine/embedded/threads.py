"""How many threads a step runs on: all the cores it may use, or one while a neighbour is on them.

A thread that the kernel takes off its core keeps the others waiting at the next barrier, and a step
has some 250. Beside one busy process on 2 cores, 2 threads took 60 ms a step and one took 27
(15 and 26 on quiet cores). Threads that wait long go to sleep, and the kernel counts that: no
sleeps a step on quiet cores, 3 to 114 beside a neighbour.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

# Sleeps that a quiet step may see: the thread that receives verbs wakes and sleeps beside it.
_FEW = 2
# Steps on one thread before all are tried again: doubled each time that was too early.
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512


def sleeps() -> int:
    """How often a thread of this process has gone to sleep so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


@dataclass(slots=True)
class ThreadGovernor:
    """Is told after each step how many sleeps it saw; `threads` is for the next one."""

    most: int
    threads: int = 0
    pause: int = _FIRST_PAUSE
    _left: int = 0  # steps to go on one thread
    _crowded: int = 0  # crowded steps in a row
    _quiet: int = 0  # quiet steps in a row

    def __post_init__(self) -> None:
        self.threads = self.most

    def after(self, slept: int) -> None:
        """Judge a step in which threads went to sleep so many times."""
        if self.most == 1:
            return
        if self.threads < self.most:
            self._left -= 1
            if self._left == 0:
                self.threads = self.most
            return
        if slept <= _FEW:
            self._crowded, self._quiet = 0, self._quiet + 1
            if self._quiet >= _FIRST_PAUSE:
                self.pause = _FIRST_PAUSE
            return
        self._crowded, self._quiet = self._crowded + 1, 0
        # One crowded step may be chance; one right after a pause is not.
        if self._crowded == 2 or self.pause > _FIRST_PAUSE:
            self.threads, self._left, self._crowded = 1, self.pause, 0
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
