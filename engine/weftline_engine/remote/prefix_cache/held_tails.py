"""What a server keeps for layers that need few of a prompt's tokens, by its KV events. It is pure.

Such layers have a state, or windows. A prompt is continued only where all groups of them have what
stands before its next token: the state there, or the blocks of the window.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from weftline_engine.api import Residency
from weftline_engine.remote.prefix_cache.kv_events import BlockName, TailsStored

_Copy = tuple[int, bool]  # the group of layers, and whether it is in host memory


@dataclass(frozen=True, slots=True)
class TailNeed:
    """A group needs the `window` tokens before the end of a prompt, in blocks of `size`; without
    them its state there."""

    window: int
    size: int


@dataclass(slots=True)
class _Run:
    """How many blocks up to the last one are there, and how many of these on the device."""

    held: int = 0
    resident: int = 0


class HeldTails:
    """The states and the blocks of windows of one server, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups: dict[int, TailNeed] = {}  # that have ever had any
        self._copies: OrderedDict[BlockName, set[_Copy]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def has(self, group: int) -> bool:
        """Whether the group of layers is one of these."""
        return group in self._groups

    def store(self, event: TailsStored, name: BlockName) -> BlockName | None:
        """Note one name of an event. Returns a block of which all is forgotten for it."""
        self._groups[event.group] = TailNeed(event.window, event.size)
        self._copies.setdefault(name, set()).add((event.group, event.on_host))
        self._copies.move_to_end(name)
        return self._copies.popitem(last=False)[0] if len(self._copies) > self._most else None

    def remove(self, name: BlockName, group: int, on_host: bool) -> None:
        copies = self._copies.get(name)
        if copies is not None:
            copies.discard((group, on_host))
            if not copies:
                del self._copies[name]

    def clear(self) -> None:
        self._copies.clear()

    def along(self, size: int) -> TailsAlong:
        """What is there along a path of blocks of so many tokens."""
        by_need: dict[TailNeed, list[int]] = {}
        for group, need in self._groups.items():
            by_need.setdefault(need, []).append(group)
        return TailsAlong(self, by_need, size)

    def where(self, name: BlockName, groups: list[int]) -> Residency:
        """Where the groups have a block; dropped if one of them has it nowhere."""
        copies, found = self._copies.get(name, set()), Residency.RESIDENT
        for group in groups:
            if (group, False) not in copies:
                if (group, True) not in copies:
                    return Residency.DROPPED
                found = Residency.HOST
        return found


class TailsAlong:
    """Goes along a prompt, block by block."""

    def __init__(self, tails: HeldTails, groups: dict[TailNeed, list[int]], size: int) -> None:
        self._tails = tails
        self._size = size
        self._end = 0
        self._runs = [(need, names, _Run()) for need, names in groups.items()]

    def next(self, name: BlockName) -> Residency:
        """Go to the next block. Where all is that a prompt needs which goes on behind it; dropped
        if something is missing."""
        self._end += self._size
        found = Residency.RESIDENT if self._runs else Residency.DROPPED
        for need, groups, run in self._runs:
            # Groups may have larger blocks than the path, which end with some of its blocks.
            step = max(need.size, self._size)
            if self._end % step:
                found = Residency.DROPPED
                continue
            where = self._tails.where(name, groups)
            run.held = 0 if where is Residency.DROPPED else run.held + 1
            run.resident = run.resident + 1 if where is Residency.RESIDENT else 0
            blocks = min(max(1, -(-need.window // step)), self._end // step)
            if run.held < blocks:
                found = Residency.DROPPED
            elif run.resident < blocks and found is Residency.RESIDENT:
                found = Residency.HOST
        return found
