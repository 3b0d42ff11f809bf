"""How long an application pauses for its tools, learned for each tenant and tool.

The seconds of a tool are assumed to be log-normal: most calls are short, and a few are very long.
A tool with few observations is drawn towards a first guess: what the operator expects of it, else
the tenant's tools together, else UNKNOWN_PAUSE_S. The code is synchronous and has no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# The assumed seconds of a pause about which nothing is known.
UNKNOWN_PAUSE_S = 5.0
# The first guess weighs as much as this many observations.
GUESS_WEIGHT = 2.0
# The assumed deviation of the logarithm before any observation: most calls take between a third and
# three times the median.
GUESS_SIGMA = 1.0
# Tools remembered. Beyond that the one that was used longest ago is forgotten.
MOST_TOOLS = 1024
# Seconds below and above which pauses are not told apart.
SHORTEST_S, LONGEST_S = 1e-4, 3600.0
# The deviation of a logarithm counts up to this, so that one strange call does not make the mean of
# a log-normal astronomical.
MOST_SIGMA = 2.0


@dataclass(slots=True)
class LogNormal:
    """Running mean and variance of the logarithm of what was seen (Welford's method)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def learn(self, seconds: float) -> None:
        seen = math.log(min(max(seconds, SHORTEST_S), LONGEST_S))
        self.count += 1
        apart = seen - self.mean
        self.mean += apart / self.count
        self.squares += apart * (seen - self.mean)

    def expect(self, guess_s: float) -> float:
        """The mean of the distribution, where GUESS_WEIGHT observations of `guess_s` are added.

        `guess_s` is itself a mean, so the median that it adds is lower.
        """
        guess = math.log(min(max(guess_s, SHORTEST_S), LONGEST_S)) - GUESS_SIGMA**2 / 2
        weight = self.count + GUESS_WEIGHT
        mean = (self.count * self.mean + GUESS_WEIGHT * guess) / weight
        # The error of a wrong guess is no measurement of the tool, so that error does not count
        # here.
        variance = (self.squares + GUESS_WEIGHT * GUESS_SIGMA**2) / weight
        return min(math.exp(mean + min(variance, MOST_SIGMA**2) / 2), LONGEST_S)


class Pauses:
    """The pauses of all tools, by tenant. Tools are those of one model's turn, by name."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, str], LogNormal] = {}  # the last one used is the last
        self._tenants: dict[str, LogNormal] = {}

    def expect(self, tenant: str, tools: Iterable[str]) -> float | None:
        """The seconds until the longest of these tools has ended; None without a tool."""
        usual = self._tenants.get(tenant, LogNormal()).expect(UNKNOWN_PAUSE_S)
        return max((self._of(tenant, tool, usual) for tool in tools), default=None)

    def learn(self, tenant: str, tools: tuple[str, ...], seconds: float) -> None:
        """Note that an application went on `seconds` after it had called these tools.

        Of several tools the one that was expected to take longest gets the observation: the pause
        says nothing about the others but that they were not longer.
        """
        if not tools:
            return
        usual = self._tenants.setdefault(tenant, LogNormal())
        expected = usual.expect(UNKNOWN_PAUSE_S)
        longest = max(tools, key=lambda tool: self._of(tenant, tool, expected))
        usual.learn(seconds)
        found = self._tools.pop((tenant, longest), None) or LogNormal()
        found.learn(seconds)
        self._tools[tenant, longest] = found
        while len(self._tools) > MOST_TOOLS:
            del self._tools[next(iter(self._tools))]
        while len(self._tenants) > MOST_TOOLS:
            del self._tenants[next(iter(self._tenants))]

    def _of(self, tenant: str, tool: str, usual: float) -> float:
        known = self._tools.get((tenant, tool)) or LogNormal()
        return known.expect(usual)
