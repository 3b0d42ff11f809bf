"""How many threads a step runs on: all the cores it may use, or one while a neighbour is on them.

A thread that the kernel takes off its core keeps the others waiting at the next barrier, and a step
has some 250. Beside one busy process on 2 cores, 2 threads took 35 ms for a step of 8 rows and one
took 25 (16 and 26 on quiet cores), and for 512 rows 1.43 s and 1.19 s (0.68 and 1.17). Threads that
wait long go to sleep, and the kernel counts that.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

# Sleeps that a quiet step may see, of the thread that receives verbs: none in 13 to 80 ms, up to 3
# in 310 ms; 4 in 28 ms and 150 in a second beside a neighbour.
_FEW, _FEW_A_SECOND = 2, 20
# Seconds on one thread before all are tried again: doubled each time that was too early.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.4, 12.8


def sleeps() -> int:
    """How often a thread of this process has gone to sleep so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


@dataclass(slots=True)
class ThreadGovernor:
    """Is told after each step how many sleeps it saw; `threads` is for the next one."""

    most: int
    threads: int = 0
    pause: float = _FIRST_PAUSE  # seconds
    _left: float = 0.0  # seconds to go on one thread
    _crowded: int = 0  # crowded steps in a row
    _quiet: float = 0.0  # seconds without one

    def __post_init__(self) -> None:
        self.threads = self.most

    def after(self, slept: int, seconds: float) -> None:
        """Judge a step of so many seconds in which threads went to sleep so many times."""
        if self.most == 1:
            return
        if self.threads < self.most:
            self._left -= seconds
            if self._left <= 0:
                self.threads = self.most
            return
        if slept <= _FEW + _FEW_A_SECOND * seconds:
            self._crowded, self._quiet = 0, self._quiet + seconds
            if self._quiet >= _FIRST_PAUSE:
                self.pause = _FIRST_PAUSE
            return
        self._crowded, self._quiet = self._crowded + 1, 0.0
        # One crowded step may be chance; one right after a pause is not.
        if self._crowded == 2 or self.pause > _FIRST_PAUSE:
            self.threads, self._left, self._crowded = 1, self.pause, 0
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
