"""The calls in vLLM: their order, and which of them must wait because of the token bound of others.

This module is pure. The scheduler that runs inside vLLM asks the ledger before each step, and acts.
The order and the sharing of a step are those of our own engine
(`weftline_engine.bookkeeping.schedule.step_order`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weftline_engine.api import PRIORITY_S, Hints
from weftline_engine.bookkeeping.schedule.sequence import Rank
from weftline_engine.bookkeeping.schedule.step_order import TokenBound, is_read, rank, urgency

# The most hints that are kept for requests that have not come yet. The oldest is forgotten.
MOST_EARLY = 4096
# A request that did not come from weftline keeps its priority in vLLM, between minus and plus this
# number. One unit counts as ten seconds of waiting.
MOST_PRIORITY = 8


@dataclass(eq=False, slots=True)
class VLLMCall:
    """A request of vLLM. `tokens` is vLLM's own list, which grows with the output."""

    request: str
    op: str
    tokens: Sequence[int]
    arrival: int
    born: float
    hints: Hints = field(default_factory=Hints)
    open: bool = False  # vLLM gets whole prompts only
    rank: Rank = (False, 0.0, 0, 0.0, 0)


class CallLedger:
    """The calls by vLLM's request id, with the newest hints of the server."""

    def __init__(self) -> None:
        self._calls: dict[str, VLLMCall] = {}
        self._by_op: dict[str, VLLMCall] = {}
        self._early: OrderedDict[str, Hints] = OrderedDict()
        self._arrivals = 0
        self._changed = False

    def __len__(self) -> int:
        return len(self._calls)

    def add(
        self, request: str, op: str | None, tokens: Sequence[int], priority: int, now: float
    ) -> None:
        """Add a request at `now`. `op` is None if it did not come from weftline."""
        self._arrivals += 1
        bounded = max(-MOST_PRIORITY, min(MOST_PRIORITY, priority))
        hints = Hints(priority=bounded, turn=now + PRIORITY_S * bounded)
        if op is not None:
            hints = self._early.pop(op, Hints(turn=now))
        call = VLLMCall(request, op or "", tokens, self._arrivals, now - hints.waited, hints)
        self._calls[request] = call
        if op is not None:
            self._by_op[op] = call
        self._changed = True

    def hint(self, op: str, hints: Hints) -> None:
        """Set the server's hints about an op. Its request may come later."""
        call = self._by_op.get(op)
        if call is None:
            self._early[op] = hints
            self._early.move_to_end(op)
            if len(self._early) > MOST_EARLY:
                self._early.popitem(last=False)
            return
        if call.hints != hints:
            call.hints = hints
            self._changed = True

    def end(self, request: str) -> None:
        """Forget a request that vLLM has finished or aborted."""
        call = self._calls.pop(request, None)
        if call is not None and self._by_op.get(call.op) is call:
            del self._by_op[call.op]
            self._changed = True

    def order(self) -> list[str] | None:
        """All requests, the most urgent first. None if nothing has changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        calls = list(self._calls.values())
        rank(calls)
        return [call.request for call in sorted(calls, key=urgency)]

    def is_read(self, request: str) -> bool:
        """Whether somebody reads the tokens of this answer as they come."""
        call = self._calls.get(request)
        return call is not None and is_read(call)

    def held(self, running: Iterable[str], waiting: Iterable[str], now: float) -> set[str]:
        """The waiting requests that may not join the running ones in the next step."""
        bounded = any(call.hints.token_bound is not None for call in self._calls.values())
        if not bounded:
            return set()
        bound = TokenBound(now)
        for request in running:
            if call := self._calls.get(request):
                bound.add(call)
        found: set[str] = set()
        waits = (call for one in waiting if (call := self._calls.get(one)))
        for call in sorted(waits, key=urgency):
            if bound.allows(call):
                bound.add(call)
            else:
                found.add(call.request)
        return found
