"""At which blocks a server keeps states of a model, by its KV events. The code is pure.

A model with a state continues a prompt only where the states of all its groups of layers are kept.
"""

from __future__ import annotations

from collections import OrderedDict

from weftline_engine.api import Residency
from weftline_engine.remote.prefix_cache.kv_events import BlockName

_Copy = tuple[int, bool]  # the group of layers, and whether it is in host memory


class HeldStates:
    """The states of one server, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups: set[int] = set()
        self._copies: OrderedDict[BlockName, set[_Copy]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def groups(self) -> frozenset[int]:
        """The groups of layers that have ever had a state."""
        return frozenset(self._groups)

    def store(self, name: BlockName, group: int, on_host: bool) -> BlockName | None:
        """Note a state at the end of a block. Returns a block whose states are forgotten for it."""
        self._groups.add(group)
        self._copies.setdefault(name, set()).add((group, on_host))
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

    def at(self, name: BlockName) -> Residency:
        """Where the states at the end of a block are; dropped if one of them is nowhere."""
        copies, found = self._copies.get(name, set()), Residency.RESIDENT
        for group in self._groups:
            if (group, False) not in copies:
                if (group, True) not in copies:
                    return Residency.DROPPED
                found = Residency.HOST
        return found if self._groups else Residency.DROPPED
