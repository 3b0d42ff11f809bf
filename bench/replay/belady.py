"""Belady's optimum for a KV cache: the fewest prompt tokens that any eviction has to compute.

The requests come in the order in which they really began. Each reads the tokens of its prompt, and
leaves those of its answer too. What is evicted is always the token that is needed last; a token is
never needed later than those behind it, so the beginnings of contexts stay. The cache counts single
tokens, and no request that runs holds any. So a real cache cannot compute less in this order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Access:
    """A request: the places of its prompt and answer in the tree of all texts, and how many of them
    are the prompt's."""

    path: tuple[int, ...]
    prompt: int


@dataclass(slots=True)
class Tree:
    """The texts of all requests. A place is known by the place before it and by its word."""

    _places: dict[tuple[int, int], int] = field(default_factory=dict)

    def path(self, text: Sequence[int]) -> tuple[int, ...]:
        """The places of a text's words."""
        found: list[int] = []
        at = -1  # before the first word
        for word in text:
            at = self._places.setdefault((at, word), len(self._places))
            found.append(at)
        return tuple(found)


def computed(accesses: Sequence[Access], capacity: float) -> int:
    """The prompt tokens that are computed with room for `capacity` tokens; `inf` never evicts.

    The last token of a prompt is always computed, because its logits are wanted.
    """
    following = _next_uses(accesses)
    cached: dict[int, float] = {}
    heap: list[tuple[float, int]] = []
    total = 0
    for number, access in enumerate(accesses):
        hits = 0
        for place in access.path[: access.prompt - 1]:
            if place not in cached:
                break
            hits += 1
        total += access.prompt - hits
        for place, use in zip(access.path, following[number], strict=True):
            cached[place] = use
            # A place has a larger number than those before it, so the last of a context goes first.
            heapq.heappush(heap, (-use, -place))
        while len(cached) > capacity:
            use, place = heapq.heappop(heap)
            if cached.get(-place) == -use:
                del cached[-place]
    return total


def _next_uses(accesses: Sequence[Access]) -> list[list[float]]:
    """For each request and place, the number of the next request that needs the place."""
    found: list[list[float]] = []
    later: dict[int, float] = {}
    for number in range(len(accesses) - 1, -1, -1):
        path = accesses[number].path
        found.append([later.get(place, math.inf) for place in path])
        later.update(dict.fromkeys(path, float(number)))
    return found[::-1]
