"""A gate like ThunderAgent's, rebuilt from its paper (arXiv 2602.13692), before an engine.

It knows programs by the session that their requests name. A program holds the tokens of its last
request. Those of a program that runs a tool decay, because its tool may take long. Every POLL_S
seconds the gate compares the sum with the KV cache. Beyond it, it pauses programs, the smallest
first: their next request waits. Below it, it resumes the paused program that fits best.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

POLL_S = 5.0
HALF_S = 20.0  # the tokens of a program in a tool count half after so long


@dataclass(eq=False)
class _Program:
    """A program: the tokens of its context, and whether it may run."""

    tokens: int
    may_run: asyncio.Event = field(default_factory=asyncio.Event)
    tool_since: float | None = None


class Thunder:
    """The programs that are active, and those that are paused."""

    def __init__(self, pool: int, now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self._programs: dict[object, _Program] = {}

    async def request(self, name: object, tokens: int) -> None:
        """Wait until the request of `tokens` tokens of a program may go to the engine."""
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = _Program(tokens)
            if self._held() + tokens <= self._pool:
                program.may_run.set()
        program.tokens, program.tool_since = tokens, None
        await program.may_run.wait()

    def responded(self, name: object) -> None:
        """The program has its response, and runs a tool."""
        self._programs[name].tool_since = self._now()

    def ended(self, name: object) -> None:
        """Forget the program. Its room is given away at the next poll."""
        del self._programs[name]

    async def poll_forever(self) -> None:
        """Pause and resume programs, every POLL_S seconds."""
        while True:
            await asyncio.sleep(POLL_S)
            self.poll()

    def poll(self) -> None:
        """Pause the smallest programs beyond the cache, or resume the largest that fit."""
        active = [one for one in self._programs.values() if one.may_run.is_set()]
        paused = [one for one in self._programs.values() if not one.may_run.is_set()]
        for one in sorted(active, key=lambda one: one.tokens):
            if self._held() <= self._pool:
                break
            one.may_run.clear()
        for one in sorted(paused, key=lambda one: -one.tokens):
            if self._held() + one.tokens <= self._pool or not self._held():
                one.may_run.set()

    def _held(self) -> float:
        return sum(self._weight(one) for one in self._programs.values() if one.may_run.is_set())

    def _weight(self, one: _Program) -> float:
        if one.tool_since is None:
            return one.tokens
        away: float = 0.5 ** ((self._now() - one.tool_since) / HALF_S)
        return one.tokens * away
