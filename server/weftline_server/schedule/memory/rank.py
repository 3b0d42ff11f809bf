"""The memory that a call will hold over time, in token-seconds, until it gives it back.

LAMPS orders requests by this integral: one that holds little, or for a short time, goes first.
Every part is in the same unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weftline_server.schedule.memory.waste import Strategy


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The rest of a request up to its next release, or with the pause behind it.

    The request holds `held` tokens and computes `tokens` more, one after the other, in `token_s`
    seconds each. Then the request pauses for `pause_s` under `strategy`, and computes `later`
    tokens. They and a context that is computed again take `again_s` seconds each, and a context
    that is copied back takes `copy_s`.
    """

    tokens: int
    token_s: float
    held: int = 0
    pause_s: float = 0.0
    strategy: Strategy = Strategy.DISCARD
    later: int = 0
    again_s: float = 0.0
    copy_s: float = 0.0


def token_seconds(need: MemoryNeed) -> float:
    context = need.held + need.tokens
    total = _growing(need.held, need.tokens, need.token_s)
    match need.strategy:
        case Strategy.PRESERVE:
            total += context * need.pause_s
        case Strategy.DISCARD if need.later:
            total += _growing(0, context, need.again_s)
        case Strategy.SWAP if need.later:
            total += 2 * need.copy_s * context * context
    return total + _growing(context, need.later, need.again_s)


def order(needs: Iterable[tuple[str, MemoryNeed]]) -> list[str]:
    """The names of the needs, the smallest integral first."""
    return [name for name, need in sorted(needs, key=lambda one: (token_seconds(one[1]), one[0]))]


def _growing(held: int, tokens: int, each_s: float) -> float:
    """A context of `held` tokens grows by `tokens`, each of which is held from its start on."""
    return each_s * (held * tokens + tokens * (tokens + 1) / 2)
