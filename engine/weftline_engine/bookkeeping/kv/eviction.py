"""The order in which leaves of the context tree are evicted: by their predicted next use.

Leaves without a prediction are evicted first, in the order of their last use. Next is the leaf
whose predicted next use is farthest from now (Belady 1966; for agents KVFlow, 2025). A prediction
that was missed counts in the same way: the longer ago its time was, the sooner the leaf is evicted.
After two minutes a missed prediction counts as none.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

# Weight of the newest interval between two uses. The earlier intervals share the rest.
_NEWEST = 0.5
# Seconds behind its time after which a use is not expected any more. In a full cache, conversations
# of clients that tell no end stayed until then, and what was new went at once.
LAPSED_S = 120.0


class Leaf:
    """The record of a node's uses. `read` is the time of the last use in seconds, `reader` the
    application whose use it was, and `gap` the usual seconds between the uses of two applications.
    `wanted` maps names of contexts to the time at which they will read the node. `used` is a
    counter's value at the node's last release."""

    __slots__ = ("gap", "read", "reader", "stamp", "used", "wanted")

    def __init__(self) -> None:
        self.used = 0
        self.read = 0.0
        self.reader = ""
        self.gap: float | None = None
        self.wanted: dict[str, float] = {}
        self.stamp = 0  # of its newest entry in the heaps

    @property
    def is_free(self) -> bool:
        raise NotImplementedError

    def read_at(self, now: float, reader: str = "") -> None:
        """Note a use by an application, "" for one without a name.

        Only the use by another application says that more may come. What an application will read
        again itself is `wanted`, and after its end it reads nothing. Without this, the contexts of
        ended sessions stayed, and 24 coding sessions computed a sixth more tokens.
        """
        if not reader or reader != self.reader:
            gap = now - self.read
            self.gap = gap if self.gap is None else self.gap + _NEWEST * (gap - self.gap)
        self.read, self.reader = now, reader

    def next_use(self, now: float) -> float | None:
        """The time of the next use: as announced in `wanted`, else from `gap`. None if unknown."""
        if self.wanted:
            return min(self.wanted.values(), key=lambda at: abs(at - now))
        return None if self.gap is None else self.read + self.gap


L = TypeVar("L", bound=Leaf)
# The expected second (or the counter of the last use), a unique number, the leaf.
Entry = tuple[float, int, L]


class Leaves(Generic[L]):
    """The leaves that may be evicted, in heaps. An entry is outdated when its leaf was added again
    or is not free any more. Outdated entries are removed when a heap has `most` entries.

    Without `predicts` the least recently used leaf is evicted first.
    """

    def __init__(self, most: int, *, predicts: bool = True) -> None:
        self._predicts = predicts
        self._most = max(most, 64)
        self._stamps = itertools.count(1)
        self._unknown: list[Entry[L]] = []
        self._late: list[Entry[L]] = []  # by minus the expected second: the latest is first
        self._overdue: list[Entry[L]] = []  # by the expected second

    def add(self, leaf: L, now: float) -> None:
        """Add `leaf`, or update its place in the order."""
        leaf.stamp = stamp = next(self._stamps)
        at = leaf.next_use(now) if self._predicts else None
        if at is None:
            self._push(self._unknown, (float(leaf.used), stamp, leaf))
        else:
            self._push(self._late, (-at, stamp, leaf))
            self._push(self._overdue, (at, stamp, leaf))

    def evict(self, now: float) -> L | None:
        """Remove and return the leaf to evict first. None if there is none."""
        unknown, overdue = self._top(self._unknown), self._top(self._overdue)
        if unknown is not None:
            if (
                overdue is not None
                and now - overdue[0] > LAPSED_S
                and overdue[2].used < unknown[2].used
            ):
                return heapq.heappop(self._overdue)[2]
            return heapq.heappop(self._unknown)[2]
        late = self._top(self._late)
        if late is None or overdue is None:
            return None
        if -late[0] - now >= now - overdue[0]:
            return heapq.heappop(self._late)[2]
        return heapq.heappop(self._overdue)[2]

    def _push(self, entries: list[Entry[L]], entry: Entry[L]) -> None:
        if len(entries) >= self._most:
            entries[:] = [one for one in entries if _is_current(one)]
            heapq.heapify(entries)
        heapq.heappush(entries, entry)

    def _top(self, entries: list[Entry[L]]) -> Entry[L] | None:
        while entries and not _is_current(entries[0]):
            heapq.heappop(entries)
        return entries[0] if entries else None


def _is_current(entry: Entry[L]) -> bool:
    _, stamp, leaf = entry
    return leaf.stamp == stamp and leaf.is_free
