"""Placement: from the queue and the engines' loads to what starts where, as a pure function.

`request` is what an ordinary server does: first come, first served, whoever the calls belong to.
It is the control of every experiment. `app` serves the application that came first, and in it the
call furthest from its sink, so that an application's last call is not behind another's first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from weftline_engine.api import Hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A primitive that could start; `tokens` of prompt and output bound what it will hold."""

    id: str
    model: str
    queued: float  # seconds, monotonic
    tokens: int
    hints: Hints
    open: bool = False  # an early fill: the rest of its prompt does not exist yet


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """An engine that is ready, and what it has in hand."""

    name: str
    model: str
    running: int
    running_tokens: int
    max_running: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Start primitive `id` on `engine`."""

    id: str
    engine: str


Order = Callable[[Queued], tuple[float, ...]]


def _first_come(item: Queued) -> tuple[float, ...]:
    return (item.queued,)


def _by_application(item: Queued) -> tuple[float, ...]:
    return (item.hints.arrival, -item.hints.depth, item.queued)


POLICIES: Mapping[str, Order] = MappingProxyType({"app": _by_application, "request": _first_come})


def place(queue: Sequence[Queued], engines: Sequence[EngineLoad], policy: str) -> list[Placement]:
    """Place what fits, in the policy's order, each on the least loaded engine of its model.

    An early fill comes after what is whole, and takes no engine beyond half of its places: it must
    never hold up the very calls that it waits for.
    """
    loads = {engine.name: engine for engine in engines}
    placements = []
    order = POLICIES[policy]
    for item in sorted(queue, key=lambda item: (item.open, *order(item))):
        open_ = [
            load
            for load in loads.values()
            if load.model == item.model
            and load.running < (load.max_running // 2 if item.open else load.max_running)
        ]
        if not open_:
            continue
        best = min(open_, key=lambda load: (load.running_tokens, load.running, load.name))
        placements.append(Placement(item.id, best.name))
        loads[best.name] = replace(
            best, running=best.running + 1, running_tokens=best.running_tokens + item.tokens
        )
    return placements
