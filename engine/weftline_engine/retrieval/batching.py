"""Chooses the items of the next batch (Teola section 5: topology-aware batching). Pure.

Applications are served in the order of their arrival, so that the first one ends early. Within an
application the ops that are farthest from its answer come first, because most other steps wait for
them. Slots that are left go to the next depth, then to the next application.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weftline_engine.api import Hints

PRIORITY_S = 10.0  # one step of the client's priority counts as much as this time of waiting


@dataclass(frozen=True, slots=True)
class Waiting:
    """An op with items to compute: the tokens of each, and how many of them are `done`."""

    op: str
    hints: Hints
    tokens: tuple[int, ...]
    done: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch that belongs to one op: its items from `start` up to `stop`."""

    op: str
    start: int
    stop: int


def form(waiting: Iterable[Waiting], most_items: int, most_tokens: int) -> list[Share]:
    """Return the shares of the next batch: at most `most_items` items and `most_tokens` tokens.

    Equally urgent ops keep the order in which they come. A single item that exceeds `most_tokens`
    makes a batch of its own. The result is empty only if no item waits.
    """
    shares: list[Share] = []
    items = tokens = 0
    for one in sorted(waiting, key=_urgency):
        stop = one.done
        while stop < len(one.tokens) and items < most_items:
            if items and tokens + one.tokens[stop] > most_tokens:
                break
            tokens += one.tokens[stop]
            items += 1
            stop += 1
        if stop > one.done:
            shares.append(Share(one.op, one.done, stop))
        if items >= most_items or tokens >= most_tokens:
            break
    return shares


def _urgency(one: Waiting) -> tuple[float, str, int]:
    hints = one.hints
    arrival = hints.arrival + PRIORITY_S * hints.priority
    return arrival, hints.application, -hints.depth
