"""How many tokens the results of tools have, learned for each tenant and tool by its name."""

from __future__ import annotations

from collections.abc import Iterable

# Tools remembered. Beyond that the one that was used longest ago is forgotten.
MOST_TOOLS = 1024
# The weight of the newest result in a running mean.
_NEWEST = 0.2
# What is assumed of a tool whose results were not seen: the mean of InferCept's six tools is 35.
UNKNOWN_TOKENS = 32.0


class ToolResults:
    """The mean result of each tool. The code is synchronous and has no clock."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, str], float] = {}  # the last one used is the last

    def expect(self, tenant: str, tools: Iterable[str]) -> float:
        """The tokens of the results of these tools together."""
        return sum(self._tools.get((tenant, tool), UNKNOWN_TOKENS) for tool in tools)

    def learn(self, tenant: str, tools: tuple[str, ...], tokens: int) -> None:
        """Note that the results of these tools had so many tokens together. Each tool is taken to
        be off by the same factor."""
        factor = tokens / self.expect(tenant, tools) if tools else 0.0
        for tool in dict.fromkeys(tools):
            known = self._tools.pop((tenant, tool), None)
            seen = factor * (UNKNOWN_TOKENS if known is None else known)
            mean = seen if known is None else known + _NEWEST * (seen - known)
            self._tools[tenant, tool] = max(1.0, mean)
        while len(self._tools) > MOST_TOOLS:
            del self._tools[next(iter(self._tools))]
