"""How many tokens an engine has computed, read from its cache and generated since it was added."""

from __future__ import annotations

from weftline_engine.api import Usage


class Totals:
    """The counts of one engine. Output counts as it comes, and prompts when their op ends."""

    def __init__(self) -> None:
        self.computed = 0
        self.cached = 0
        self.output = 0
        self._counted: dict[str, int] = {}  # op → its tokens in `output`

    def part(self, op: str, tokens: int) -> None:
        """Count generated tokens of an op that runs."""
        self.output += tokens
        self._counted[op] = self._counted.get(op, 0) + tokens

    def so_far(self, op: str) -> int:
        """The tokens that an op has generated."""
        return self._counted.get(op, 0)

    def ended(self, op: str, usage: Usage) -> None:
        """Count an op that ended well. An engine that takes text sends no token ids before."""
        self.computed += usage.prompt_tokens - usage.cached_tokens
        self.cached += usage.cached_tokens
        self.output += max(0, usage.output_tokens - self._counted.get(op, 0))
        self.left(op)

    def left(self, op: str) -> None:
        """Forget an op that the engine no longer has."""
        self._counted.pop(op, None)
