"""What applications of one kind have in common: their pauses, their sizes, and how they grow."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from weftline_server.schedule.memory.constants import (
    FADING,
    GROWTH,
    NEWEST_WEIGHT,
    OTHERS,
    SHORTEST_PAUSE_S,
)


class Growths:
    """By how many tokens a tenant's applications grow after their first calls, of whatever kind."""

    def __init__(self) -> None:
        self._began: deque[int] = deque(maxlen=OTHERS)  # first calls
        self._ended: deque[tuple[int, int]] = deque(maxlen=OTHERS)  # first calls, and growths
        # Sums over these, because `expect` runs for each of many that wait.
        self._usual = math.inf
        self._weight = self._grown = 0

    def expect(self, first: int) -> float:
        """The growth of an application of an unknown kind, with so many tokens in its first call.

        Applications with short first calls say little about an application with a long first call.
        """
        guess = GROWTH * min(first, self._usual)
        return (first * guess + self._grown) / max(1, first + self._weight)

    def begin(self, first: int) -> None:
        """An application has begun with a call of so many tokens."""
        self._began.append(first)
        self._usual = sum(self._began) / len(self._began)

    def end(self, first: int, growth: int) -> None:
        """An application has ended, `growth` tokens larger than its first call."""
        self._ended.append((first, growth))
        self._weight = sum(tokens for tokens, _ in self._ended)
        self._grown = sum(tokens * more for tokens, more in self._ended)


@dataclass(slots=True)
class Habits:
    """Running means over the applications of one kind.

    `first` counts the tokens of the first call that was seen of the kind. `pause_s` are the seconds
    between two calls, a geometric mean, and `longest_s` those of a long pause. `size` counts an
    application's tokens at its end, and `shared` the tokens among these that other applications had
    computed before. `released` is the share of its pauses in which it gave its room up, and
    `resumed` that of its answers without a call of a tool behind which it sent another prompt.
    `tools` are those that one of its calls has called last. `others` are all applications of the
    tenant.
    """

    first: int = 0
    pause_s: float | None = None
    longest_s: float = 0.0
    size: float | None = None
    shared: float = 0.0
    released: float | None = None
    resumed: float | None = None
    tools: tuple[str, ...] = ()
    others: Growths = field(default_factory=Growths)

    def learn_release(self, gives_up: bool) -> None:
        self.released = mean(self.released, float(gives_up))

    def learn_resumed(self, goes_on: bool) -> None:
        self.resumed = mean(self.resumed, float(goes_on))

    def learn_pause(self, seconds: float) -> None:
        self.pause_s = typical(self.pause_s, seconds)
        self.longest_s = max(FADING * self.longest_s, seconds)

    def learn_size(self, tokens: int) -> None:
        self.size = mean(self.size, tokens)

    def learn_shared(self, tokens: int) -> None:
        self.shared = mean(self.shared, tokens)


def mean(known: float | None, seen: float) -> float:
    return seen if known is None else known + NEWEST_WEIGHT * (seen - known)


def typical(known: float | None, seconds: float) -> float:
    """A geometric running mean of pauses.

    A few pauses are a hundred times as long as most, and an arithmetic mean would follow them: the
    contexts whose last pause was long would be evicted first, and come back soon. Half of the
    pauses of 24 coding agents are below 16 s, and their mean is 123 s.
    """
    seen = max(seconds, SHORTEST_PAUSE_S)
    return seen if known is None else float(known ** (1 - NEWEST_WEIGHT) * seen**NEWEST_WEIGHT)
