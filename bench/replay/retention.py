"""How long other systems keep the context of a session in the KV cache between two requests.

A context is pinned for a time to live. When that has passed, it is evicted as others are, the least
recently used first. Rules are plain functions of what was observed, and have no clock.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

# Continuum, section 4.2: with at most this many observations the cold start counts.
HISTORY = 100
# Continuum averages the waiting over a window whose length it does not publish: HISTORY, too.
WINDOW = 100
# Continuum's published code pins for as long, in place of the paper's estimate.
FIXED_S = 2.0


class TimeToLive(Protocol):
    """A rule for how long a context is pinned."""

    def seconds(self, reload_s: float) -> float:
        """For a context that would take `reload_s` to compute again."""
        ...

    def resumed(self, pause_s: float) -> None:
        """A session came back after `pause_s` seconds."""
        ...

    def waited(self, seconds: float) -> None:
        """A request without a pinned context waited so long for the engine."""
        ...

    def ended(self, turns: int) -> None:
        """A session has ended after so many requests."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTtl:
    """The same time for all contexts."""

    ttl_s: float = FIXED_S

    def seconds(self, reload_s: float) -> float:
        """`TimeToLive.seconds`"""
        return self.ttl_s

    def resumed(self, pause_s: float) -> None:
        """`TimeToLive.resumed`"""

    def waited(self, seconds: float) -> None:
        """`TimeToLive.waited`"""

    def ended(self, turns: int) -> None:
        """`TimeToLive.ended`"""


@dataclass(slots=True)
class Continuum:
    """Continuum's time to live (arXiv 2511.02230 v6, sections 4.1 to 5.2).

    The paper's Equation 2 pins for the t with the largest P(t) (T m + R) - t. P(t) is the share of
    the observed pauses that ended within t. T is the mean wait of requests whose context was not
    pinned. R is the time to compute the context again. m says how far the number of past requests
    tells that of the requests to come: minus their correlation. Before HISTORY observations, pauses
    are assumed to be exponential with a mean of one second. The recorded sessions name no tools, so
    all pauses are of one tool.
    """

    _pauses: list[float] = field(default_factory=list)  # sorted
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _turns: list[tuple[int, int]] = field(default_factory=list)  # past and to come
    _memory: float = 1.0

    def seconds(self, reload_s: float) -> float:
        """`TimeToLive.seconds`"""
        wait = statistics.fmean(self._waits) if self._waits else 0.0
        benefit = wait * self._memory + reload_s
        if len(self._pauses) <= HISTORY:
            return math.log(benefit) if benefit > 1.0 else 0.0
        best, most = 0.0, 0.0
        for at, pause in enumerate(self._pauses):
            if pause > benefit:
                break
            if (gain := (at + 1) / len(self._pauses) * benefit - pause) > most:
                best, most = pause, gain
        return best

    def resumed(self, pause_s: float) -> None:
        """`TimeToLive.resumed`"""
        insort(self._pauses, pause_s)

    def waited(self, seconds: float) -> None:
        """`TimeToLive.waited`"""
        self._waits.append(seconds)

    def ended(self, turns: int) -> None:
        """`TimeToLive.ended`"""
        self._turns += [(past, turns - past) for past in range(1, turns + 1)]
        past, left = zip(*self._turns, strict=True)
        if len(set(past)) > 1 and len(set(left)) > 1:
            self._memory = -statistics.correlation(past, left)
