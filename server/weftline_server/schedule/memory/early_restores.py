"""When contexts come back from host memory: before the end of the tools that their calls wait for.

The code is synchronous and is told the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

# A copy begins this many times its own seconds before the expected end. An end that comes a little
# earlier then finds the copy done.
AHEAD = 2.0
# A copy of fewer steps is left to the call itself: 24 agents with copies of 1.3 steps, on a third
# of their cache, took 29.9 s in the mean with early copies, and 29.1 s without.
LONG_COPY = 4.0


@dataclass(frozen=True, slots=True)
class Swapped:
    """A context in host memory: its `tokens`, the seconds of its copy, and when it is read."""

    engine: str
    tokens: int
    copy_s: float
    at: float

    @property
    def begins(self) -> float:
        return self.at - AHEAD * self.copy_s


class EarlyRestores:
    """The contexts in host memory in the order in which their copies begin."""

    def __init__(self) -> None:
        self._swapped: dict[str, Swapped] = {}
        self._begins: list[tuple[float, str]] = []  # a heap, with contexts that have gone
        self._restored: dict[str, Swapped] = {}  # and their calls have not gone on

    @property
    def next_at(self) -> float | None:
        """When the next copy begins; None without one."""
        while self._begins and self._begins[0][1] not in self._swapped:
            heappop(self._begins)
        return self._begins[0][0] if self._begins else None

    def add(self, context: str, swapped: Swapped) -> None:
        """A context goes to host memory."""
        self.forget(context)
        self._swapped[context] = swapped
        heappush(self._begins, (swapped.begins, context))

    def forget(self, context: str) -> None:
        """The call goes on, or the context or its copy was dropped."""
        self._swapped.pop(context, None)
        self._restored.pop(context, None)

    def due(self, now: float, room: Mapping[str, int]) -> list[tuple[str, str]]:
        """The engines and contexts whose copies begin now, as far as each engine has `room` beside
        what runs there. A context without room is looked at again after the time of its copy, and
        then whenever it has waited twice as long."""
        found: list[tuple[str, str]] = []
        later: list[tuple[float, str]] = []
        while (begins := self.next_at) is not None and begins <= now:
            _, context = heappop(self._begins)
            one = self._swapped[context]
            back = sum(other.tokens for other in self._restored.values())
            if back + one.tokens > room.get(one.engine, 0):
                later.append((now + max(one.copy_s, now - one.begins, 0.01), context))
                continue
            del self._swapped[context]
            self._restored[context] = one
            found.append((one.engine, context))
        for entry in later:
            heappush(self._begins, entry)
        return found
