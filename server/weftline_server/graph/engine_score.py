"""What placement weighed for one engine when it placed a primitive: the terms of its score."""

from __future__ import annotations

from typing import NamedTuple


class EngineScore(NamedTuple):
    """An engine that was considered, in tokens; the engine with room and the least score wins.

    `load` is what the call finds there, with what it costs others. `missing` are the tokens of its
    prompt and output that are in no cache there, and `prefix` is what they cost. `group` and
    `gather` are negative where members of its group, or other throughput calls, are there.

    Placement makes several for each call, and hardly any is ever read: a tuple costs least.
    """

    engine: str
    room: bool
    load: float
    missing: int
    prefix: float
    group: float
    gather: float

    @property
    def score(self) -> float:
        return self.load + self.prefix + self.group + self.gather
