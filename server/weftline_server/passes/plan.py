"""The plan: what the passes have found out about each call, keyed by call id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph


@dataclass(slots=True)
class Plan:
    """Results so far. A pass reads them; only `analyse` writes, for the calls it was given.

    `criteria` is what a variable's readers care for, by variable.
    """

    criteria: Mapping[str, Criterion]
    depth: dict[str, int] = field(default_factory=dict)
    objective: dict[str, Criterion] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def advice(self, call: str) -> tuple[int, Criterion, str]:
        """What is said of `call` where it is queued: its depth, objective and group."""
        objective = self.objective.get(call, Criterion.LATENCY)
        return self.depth.get(call, 0), objective, self.group.get(call, "")


# Some calls, consumers before producers, and of each the consumers that are new or planned anew.
Calls = Mapping[str, Sequence[str]]

# A pass answers one question about each of some calls.
Pass = Callable[[Graph, Plan, Calls], Mapping[str, Any]]
