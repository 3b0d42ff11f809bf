"""How many threads a step runs on: all the cores it may use, or one while that is faster.

A thread that the kernel takes off its core keeps the others waiting at the next barrier, and a step
has some 250. Beside one busy process on 2 cores, 2 threads took 35 ms for a step of 8 rows and one
took 25 (16 and 26 on quiet cores), and for 512 rows 1.43 s and 1.19 s (0.68 and 1.17). A neighbour
that works a millisecond in five, as the server and the client do while answers stream, leaves two
threads the faster. So it is tried out: the other number for two steps, whenever threads that waited
long went to sleep (the kernel counts that) or one thread has had its time.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

# Sleeps that a quiet step may see, of the thread that receives verbs: none in 13 to 80 ms, up to 3
# in 310 ms; 4 in 28 ms and 150 in a second beside a neighbour.
_FEW, _FEW_A_SECOND = 2, 20
# What a step costs beside its rows, in rows: reading the weights (22 ms for 2 rows, 26 for 8, 70
# for 32, 141 for 64, 1,173 for 512 on one core).
_BASE_ROWS = 10
# Seconds until the next trial: doubled each time that one changed nothing.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.4, 3.2
_TRIAL_STEPS = 2
# The trial must win by so much: steps of equal work differ by a few per cent.
_WINS = 0.95
_LOSES = 1.2  # a trial ends at once where its first step is so much slower: up to 8 times was seen
_MEMORY = 0.25  # weight of the latest step in the pace


def sleeps() -> int:
    """How often a thread of this process has gone to sleep so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


@dataclass(slots=True)
class ThreadGovernor:
    """Is told after each step how it went; `threads` is for the next one."""

    most: int
    threads: int = 0
    pause: float = _FIRST_PAUSE  # seconds
    _left: float = 0.0  # seconds until a trial may begin
    _crowded: int = 0  # crowded steps in a row
    _pace: float = 0.0  # seconds for a row's work, outside of trials
    _trial: list[float] = field(default_factory=list)  # the paces of the trial that goes on
    _trying: bool = False

    def __post_init__(self) -> None:
        self.threads = self.most

    def after(self, slept: int, seconds: float, rows: int) -> None:
        """Judge a step of `rows` tokens in which threads went to sleep `slept` times."""
        if self.most == 1:
            return
        pace = seconds / (_BASE_ROWS + rows)
        if self._trying:
            self._trial.append(pace)
            if len(self._trial) == _TRIAL_STEPS or pace > _LOSES * self._pace:
                self._decide()
            return
        self._pace = pace if self._pace == 0 else self._pace + _MEMORY * (pace - self._pace)
        self._left -= seconds
        crowded = slept > _FEW + _FEW_A_SECOND * seconds
        self._crowded = self._crowded + 1 if crowded else 0
        # One crowded step may be chance.
        if self._left <= 0 and (self.threads < self.most or self._crowded >= 2):
            self._trying, self.threads = True, self._other()

    def _decide(self) -> None:
        tried = sum(self._trial) / len(self._trial)
        if tried < _WINS * self._pace:
            self._pace, self.pause = tried, _FIRST_PAUSE
        else:
            self.threads = self._other()
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        self._left = self.pause
        self._trying, self._crowded = False, 0
        self._trial.clear()

    def _other(self) -> int:
        return 1 if self.threads == self.most else self.most
