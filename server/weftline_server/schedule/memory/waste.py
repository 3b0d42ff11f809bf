"""The memory that a paused context wastes, in token-seconds, for each way to bridge the pause.

The three equations are InferCept's, with costs that the engine has measured. One token-second is
the KV cache of one token, held or blocked for one second. The context may stay where it is, be
discarded and computed again, or be copied to host memory and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from weftline_engine.api import KvCosts


class Strategy(StrEnum):
    """What happens to a context during a pause. Of equally good strategies the first wins."""

    PRESERVE = "preserve"
    SWAP = "swap"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Load:
    """What runs on the engine: `running` sequences, which hold `held` tokens of KV cache."""

    running: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Waste:
    """The token-seconds of each strategy. A strategy that is not possible costs infinity."""

    preserve: float
    swap: float
    discard: float

    @property
    def best(self) -> Strategy:
        return min(Strategy, key=self.of)

    def of(self, strategy: Strategy) -> float:
        found: float = getattr(self, strategy.value)
        return found


def waste(tokens: int, pause_s: float, costs: KvCosts, load: Load) -> Waste:
    """The waste of a context of `tokens` tokens that is continued after `pause_s` seconds."""
    return Waste(
        preserve=tokens * pause_s,
        swap=swap(tokens, costs, load) if tokens <= costs.host_tokens else math.inf,
        discard=discard(tokens, costs, load),
    )


def discard(tokens: int, costs: KvCosts, load: Load) -> float:
    """The waste of computing a context again, in chunks beside what runs.

    A step has `costs.chunk` tokens, of which the running sequences take one each. While the chunks
    are computed, the context holds memory that grows from step to step, and the sequences beside it
    wait longer for each step.
    """
    chunk = max(costs.chunk - load.running, 1)
    whole = max(math.ceil(tokens / chunk) - 1, 0)
    last = tokens - whole * chunk
    step_s = costs.step_s + costs.fill_s * costs.chunk
    growing = step_s * (whole + 1) * whole / 2 * chunk
    delayed = costs.fill_s * chunk * whole * load.held
    return growing + delayed + costs.fill_s * last * (load.held + last)


def swap(tokens: int, costs: KvCosts, load: Load) -> float:
    """The waste of copying a context out and back: the context and everything that runs wait for
    both copies."""
    return 2 * costs.copy_s * tokens * (tokens + load.held)
