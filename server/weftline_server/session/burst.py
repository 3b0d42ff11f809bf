"""The present burst of a session: the time in which it always has something on an engine or queued.

An application that is one graph has one burst. One that sends its calls one by one has a burst for
each, with pauses that are not its waiting.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Burst:
    """Since when the burst lasts, and its estimated `work` in tokens, of which `output` are
    generated. The work is the most that was left at any time, because a step that decides counts
    the work of what it may add.

    A burst goes on where its next primitive is queued at the moment at which the last one ended.
    """

    since: float = 0.0
    work: int = 0
    output: int = 0
    own_s: float | None = None  # the seconds that the work takes, once somebody has set them
    _rested: float | None = 0.0  # since when nothing is under way; None while something is

    def goes_on(self, now: float, work: int, output: int) -> None:
        """Something is under way. The application has this much work left."""
        if self._rested != now:
            self.since, self.work, self.output, self.own_s = now, work, output, None
        self._rested = None

    def rests(self, now: float) -> None:
        """Nothing is under way any more."""
        self._rested = now

    def grows(self, work: int, output: int) -> None:
        """The application has got more to do, and has this much work left."""
        if work > self.work:
            self.work, self.output, self.own_s = work, output, None
