"""A circuit breaker as a pure state machine: it stops requests after repeated failures.

After a pause the next request is a trial that closes the breaker or opens it again. The caller
passes the time, in seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class BreakerState(StrEnum):
    """Whether requests may be sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"  # the pause is over: the next result decides


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
    """When the breaker opens and for how long.

    The breaker opens after `failures` consecutive failures, for `pause_s` seconds. Failures with
    the same cause count once. Each failed trial doubles the pause, up to `longest_s`. Raises
    ValueError for values that make no sense.
    """

    failures: int = 5
    pause_s: float = 1.0
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.pause_s <= self.longest_s:
            raise ValueError(f"{self}: failures must be 1 or more, and 0 < pause_s <= longest_s")


class Breaker:
    """Counts consecutive failures. `failed` and `succeeded` return whether the state changed."""

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._causes: set[Hashable] = set()  # causes of the failures since the last success
        self._pause_s = config.pause_s
        self.state = BreakerState.CLOSED
        self.until = 0.0  # time at which the pause of an open breaker ends

    def failed(self, now: float, cause: Hashable | None = None) -> bool:
        """Record a failed request. `cause` is given if the request itself may be at fault."""
        if self.state is BreakerState.CLOSED and cause is not None:
            if cause in self._causes:
                return False
            self._causes.add(cause)
        self._failures += 1
        if self.state is BreakerState.OPEN:
            return False  # the request began before the breaker opened
        if self.state is BreakerState.CLOSED and self._failures < self._config.failures:
            return False
        if self.state is BreakerState.HALF_OPEN:
            self._pause_s = min(2 * self._pause_s, self._config.longest_s)
        self._move_to(BreakerState.OPEN)
        self.until = now + self._pause_s
        return True

    def succeeded(self) -> bool:
        """Record a successful request."""
        if self.state is BreakerState.OPEN:
            return False
        self._failures = 0
        self._causes.clear()
        if self.state is BreakerState.CLOSED:
            return False
        self._pause_s = self._config.pause_s
        self._move_to(BreakerState.CLOSED)
        return True

    def try_again(self, now: float) -> bool:
        """Half-open the breaker if its pause is over. Return whether it did."""
        if self.state is not BreakerState.OPEN or now < self.until:
            return False
        self._move_to(BreakerState.HALF_OPEN)
        return True

    def _move_to(self, state: BreakerState) -> None:
        assert state in ALLOWED[self.state], f"breaker: {self.state} to {state}"
        self.state = state
