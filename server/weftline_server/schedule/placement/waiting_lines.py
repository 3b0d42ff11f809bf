"""What waits, in the order of the policy: a placement round looks only at what may start."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from weftline_server.schedule.placement.round_data import Class, Queued

Key = tuple[Any, ...]
_Line = list[tuple[Key, int, str]]


class WaitingLines:
    """The calls of each tenant for each model, by class, each line in the order of the policy.

    With 60,000 calls of one tenant a round that sorted them all took 0.1 s, and a chat of another
    tenant waited for it at each of its steps.
    """

    def __init__(self, order: Callable[[Queued], Key]) -> None:
        self._order = order
        self._lines: dict[str, dict[str, dict[Class, _Line]]] = {}
        self._items: dict[str, tuple[Key, int, Queued]] = {}
        self._came = 0  # among equals the first that came goes first

    def add(self, item: Queued) -> None:
        key = self._order(item)
        self._came += 1
        self._items[item.id] = key, self._came, item
        tenants = self._lines.setdefault(item.model, {})
        line = tenants.setdefault(item.tenant, {}).setdefault(item.of, [])
        insort(line, (key, self._came, item.id))

    def discard(self, id: str) -> None:
        """Remove a call, if it is in a line."""
        if id not in self._items:
            return
        key, came, item = self._items.pop(id)
        tenants = self._lines[item.model]
        classes = tenants[item.tenant]
        line = classes[item.of]
        del line[bisect_left(line, (key, came))]
        if not line:
            del classes[item.of]
            if not classes:
                del tenants[item.tenant]
                if not tenants:
                    del self._lines[item.model]

    def tenants(self) -> set[str]:
        """The tenants with a call that waits."""
        return {tenant for tenants in self._lines.values() for tenant in tenants}

    def has_bounded(self, model: str) -> bool:
        """Whether a call waits that holds others to short steps."""
        return any(of[2] for classes in self._lines.get(model, {}).values() for of in classes)

    def in_turn(
        self, model: str, served: Mapping[str, float], full: Container[Class]
    ) -> Iterator[Queued]:
        """The calls for a model, the tenants in turn, without the classes that are `full` by then.

        `served` is the work that each tenant has got so far. Among equals the name decides, so that
        no tenant gains by how it orders its own calls.
        """
        heads = {tenant: _Heads(one) for tenant, one in self._lines.get(model, {}).items()}
        turns = [(served.get(tenant, 0.0), tenant) for tenant in heads]
        heapq.heapify(turns)
        while turns:
            got, tenant = turns[0]
            id = heads[tenant].next_of(full)
            if id is None:
                heapq.heappop(turns)
                continue
            item = self._items[id][2]
            heapq.heapreplace(turns, (got + item.tokens, tenant))
            yield item


class _Heads:
    """How far a round has come in each line of a tenant."""

    def __init__(self, classes: Mapping[Class, _Line]) -> None:
        self._lines = classes
        self._at = dict.fromkeys(classes, 0)

    def next_of(self, full: Container[Class]) -> str | None:
        """The next call of a class that is not full."""
        heads = [
            (self._lines[of][at], of)
            for of, at in self._at.items()
            if of not in full and at < len(self._lines[of])
        ]
        if not heads:
            return None
        (_, _, id), of = min(heads)
        self._at[of] += 1
        return id
