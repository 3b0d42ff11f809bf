"""The orders and strategies of the papers, as functions of what is predicted of a request.

Keys are seconds or token-seconds, the smallest first. Each is computed when a request arrives and
when it comes back from a tool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weftline_engine.api import KvCosts
from weftline_server.schedule.memory.rank import Need, token_seconds
from weftline_server.schedule.memory.waste import Load, Strategy, waste


@dataclass(frozen=True, slots=True)
class Seen:
    """A request at the start of a turn.

    It `arrived` first, and `came` for this turn. It has a `context` to which this turn adds its
    prompt. `output`, `pause_s` and `returned` are predictions of this turn, and the `left` ones of
    all turns together, from this one on.
    """

    arrived: float
    came: float
    context: int
    output: int
    pause_s: float
    returned: int
    left_output: int
    left_pause_s: float


Key = Callable[[Seen, KvCosts, Strategy], float]
Choice = Callable[[int, float, KvCosts, Load], Strategy]


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests are ordered, what happens to them at a pause, and after how many seconds in the
    queue one goes first (None: never)."""

    name: str
    key: Key
    choice: Choice
    patience_s: float | None = None


def least_waste(tokens: int, pause_s: float, costs: KvCosts, load: Load) -> Strategy:
    """InferCept's choice."""
    return waste(tokens, pause_s, costs, load).best


def always_discard(tokens: int, pause_s: float, costs: KvCosts, load: Load) -> Strategy:
    """What a server without a prefix cache does: each turn is a new request."""
    return Strategy.DISCARD


def always_preserve(tokens: int, pause_s: float, costs: KvCosts, load: Load) -> Strategy:
    """What a server does that keeps every context until it is continued."""
    return Strategy.PRESERVE


def memory_over_time(seen: Seen, costs: KvCosts, strategy: Strategy) -> float:
    """LAMPS's rank: the token-seconds up to the end of the pause, and of the context's way back."""
    return token_seconds(
        Need(
            tokens=seen.output,
            token_s=costs.step_s,
            held=seen.context,
            pause_s=seen.pause_s,
            strategy=strategy,
            later=seen.returned,
            again_s=costs.fill_s + costs.step_s / costs.chunk,
            copy_s=costs.copy_s,
        )
    )


# A hundred steps of the queue, in which LAMPS lets a request starve. A step is about 20 ms.
STARVED_S = 2.0

POLICIES = {
    one.name: one
    for one in (
        Policy("discard", lambda seen, costs, how: seen.came, always_discard),
        Policy("preserve", lambda seen, costs, how: seen.arrived, always_preserve),
        Policy("InferCept", lambda seen, costs, how: seen.arrived, least_waste),
        Policy("SJF", lambda seen, costs, how: seen.left_output, least_waste),
        Policy(
            "SJF-total",
            lambda seen, costs, how: seen.left_output * costs.step_s + seen.left_pause_s,
            least_waste,
        ),
        Policy("LAMPS", memory_over_time, least_waste, STARVED_S),
        Policy("LAMPS without threshold", memory_over_time, least_waste),
    )
}
