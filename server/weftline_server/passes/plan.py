"""The plan: what the passes have found out about each call, keyed by call id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weftline.protocol import Criterion
from weftline_server.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Results so far. Each pass returns a copy with one more field filled."""

    criteria: Mapping[str, Criterion]  # variable → what its reader cares for
    depth: Mapping[str, int] = field(default_factory=dict)
    objective: Mapping[str, Criterion] = field(default_factory=dict)
    group: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Pass = Callable[[Graph, Plan], Plan]
