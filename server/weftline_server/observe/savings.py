"""How much shorter a run had been without the work of one step, with the slack of its siblings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"\[\d+\]$")  # of one of many equal tasks of a map


@dataclass(frozen=True, slots=True)
class StepWork:
    """A task that has ended: when, after how many seconds of its own, and what it waited for."""

    id: str
    step: str
    ended: float
    took: float
    above: Collection[str]


def step_of(name: str) -> str:
    """The step of a program that a task belongs to: all tasks of a map are one."""
    return _NUMBER.sub("", name)


def saved_without(works: Sequence[StepWork], step: str) -> float:
    """Seconds that the run had been shorter if the tasks of this step had taken no time.

    A task starts as much earlier as the last of its inputs does. `works` are sorted by their ends.
    """
    ends = {work.id: work.ended for work in works}
    earlier: dict[str, float] = {}
    for work in works:
        above = [id for id in work.above if ends.get(id, work.ended) < work.ended]
        shift = _start(above, ends, {}) - _start(above, ends, earlier)
        earlier[work.id] = shift + (work.took if work.step == step else 0.0)
    before = max((work.ended for work in works), default=0.0)
    return before - max((work.ended - earlier[work.id] for work in works), default=0.0)


def _start(above: Sequence[str], ends: Mapping[str, float], earlier: Mapping[str, float]) -> float:
    return max((ends[id] - earlier.get(id, 0.0) for id in above), default=0.0)
