"""A circuit breaker as a pure state machine: after failures in a row, a pause, then one trial.

Time enters as data, in seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class BreakerState(StrEnum):
    """Whether requests go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"  # the pause is over: what comes next decides


_S = BreakerState
ALLOWED: Mapping[BreakerState, frozenset[BreakerState]] = MappingProxyType(
    {
        _S.CLOSED: frozenset({_S.OPEN}),
        _S.OPEN: frozenset({_S.HALF_OPEN}),
        _S.HALF_OPEN: frozenset({_S.CLOSED, _S.OPEN}),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """It opens after `failures` in a row, for `pause_s` seconds; each time again for twice as long,
    at most `longest_s`."""

    failures: int = 5
    pause_s: float = 1.0
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.pause_s <= self.longest_s:
            raise ValueError(f"a breaker of {self} never opens, or never closes")


class Breaker:
    """Counts failures in a row. `failed` and `succeeded` say whether the state changed."""

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._pause_s = config.pause_s
        self.state = BreakerState.CLOSED
        self.until = 0.0  # when an open breaker's pause is over

    def failed(self, now: float) -> bool:
        self._failures += 1
        if self.state is BreakerState.OPEN:
            return False  # a straggler of before
        if self.state is BreakerState.CLOSED and self._failures < self._config.failures:
            return False
        if self.state is BreakerState.HALF_OPEN:
            self._pause_s = min(2 * self._pause_s, self._config.longest_s)
        self._move_to(BreakerState.OPEN)
        self.until = now + self._pause_s
        return True

    def succeeded(self) -> bool:
        if self.state is BreakerState.OPEN:
            return False
        self._failures = 0
        if self.state is BreakerState.CLOSED:
            return False
        self._pause_s = self._config.pause_s
        self._move_to(BreakerState.CLOSED)
        return True

    def try_again(self, now: float) -> bool:
        """Half-open it if its pause is over."""
        if self.state is not BreakerState.OPEN or now < self.until:
            return False
        self._move_to(BreakerState.HALF_OPEN)
        return True

    def _move_to(self, state: BreakerState) -> None:
        assert state in ALLOWED[self.state], f"breaker: {self.state} to {state}"
        self.state = state
