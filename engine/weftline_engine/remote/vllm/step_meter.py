"""What vLLM's steps take: measured while it serves, for the costs of a step that decisions need.

This module is pure and is told the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from weftline_engine.bookkeeping.schedule.step_seconds import StepSeconds

# The steps that count. Older ones had other requests beside them.
WINDOW = 32
# A step with fewer prompt tokens tells little of what one of them costs.
LEAST_FILLED = 64


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """A planned step: its prompt tokens, and how many tokens these attend to; its decoding
    sequences; and the tokens of all its sequences."""

    prompt: int = 0
    attended: int = 0
    decoding: int = 0
    held: int = 0


class StepMeter:
    """The seconds of the last steps. A step takes those of a step that only decodes, and some for
    each prompt token, the more the more tokens are before it."""

    def __init__(self) -> None:
        self._planned: deque[tuple[PlannedWork, float]] = deque()  # steps whose result is to come
        self._computed_at = 0.0
        self._decodes: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # tokens and seconds
        # Tokens before a prompt token in the mean, and the seconds of one.
        self._fills: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._cost: StepSeconds | None = None

    def planned(self, work: PlannedWork, now: float) -> None:
        """A step was planned. Its result comes after those of earlier steps."""
        self._planned.append((work, now))

    def computed(self, now: float) -> None:
        """The result of the oldest planned step is there."""
        work, planned_at = self._planned.popleft()
        # A step that was planned ahead begins when the one before it ends.
        seconds = now - max(planned_at, self._computed_at)
        self._computed_at = now
        if work.decoding and not work.prompt:
            self._decodes.append((float(work.held), seconds))
        elif work.prompt >= LEAST_FILLED:
            base_s, held_s = line(self._decodes) if self._decodes else (0.0, 0.0)
            alone_s = base_s + held_s * work.held
            each_s = max(0.0, seconds - alone_s) / work.prompt
            self._fills.append((work.attended / work.prompt, each_s))
        self._cost = None

    @property
    def fill_s(self) -> float | None:
        """The seconds that a prompt token has added to a step. None if nothing was measured."""
        return median(each_s for _, each_s in self._fills) if self._fills else None

    @property
    def cost(self) -> StepSeconds | None:
        """The seconds of a step. None until steps with and without prompts were measured."""
        if self._cost is None and self._decodes and self._fills:
            (step_s, token_s), (fill_s, attend_s) = line(self._decodes), line(self._fills)
            self._cost = StepSeconds(
                step_s=step_s, fill_s=fill_s, token_s=token_s, attend_s=attend_s
            )
        return self._cost


def line(points: Collection[tuple[float, float]]) -> tuple[float, float]:
    """The line through these points as its constant and its slope, neither below zero.

    The slope is the median of those between two points, so a step that something else delayed does
    not count.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    constant = median(y - slope * x for x, y in points)
    if constant >= 0.0:
        return constant, slope
    return 0.0, median(y / x for x, y in points if x)
