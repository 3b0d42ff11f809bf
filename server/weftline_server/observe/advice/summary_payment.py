"""When a summary of a long conversation pays: what it costs, and what later turns save.

All seconds are measured, on the calls of the conversation's own program.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weftline_server.observe.advice.program import Program, RecordedCall

KEPT_MESSAGES = 20  # that stay behind the summary, as LangChain's class keeps by default
SUMMARY_TOKENS, INSTRUCTION_TOKENS = 400, 80
FEWEST_CALLS = 8  # that are measured before anything is said


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of a prompt token that is computed, of an output token without a context, and
    what each token of the context adds to an output token."""

    fill_s: float
    decode_s: float
    reread_s: float

    @staticmethod
    def of(calls: Sequence[RecordedCall]) -> Costs | None:
        """The costs of these calls; None if they tell too little."""
        computed = sum(one.computed for one in calls)
        written = [(one.prompt, one.decode_s / one.output) for one in calls if one.output > 1]
        if not computed or len(written) < FEWEST_CALLS:
            return None
        mean_at = sum(at for at, _ in written) / len(written)
        mean_s = sum(s for _, s in written) / len(written)
        spread = sum((at - mean_at) ** 2 for at, _ in written)
        slope = sum((at - mean_at) * (s - mean_s) for at, s in written) / spread if spread else 0.0
        reread_s = max(0.0, slope)
        fill_s = sum(one.fill_s for one in calls) / computed
        return Costs(fill_s, max(0.0, mean_s - reread_s * mean_at), reread_s)


@dataclass(frozen=True, slots=True)
class Payment:
    """A summary of a conversation of `context` tokens, whose prompt has `after` tokens then."""

    context: int
    after: int
    cost_s: float
    saves_s: float  # in each later turn

    @property
    def turns(self) -> int | None:
        """The turns after which it has paid; None for never."""
        return math.ceil(self.cost_s / self.saves_s) if self.saves_s > 0 else None


def payment(costs: Costs, context: int, after: int, output: float, anew: float) -> Payment:
    """What a summary costs and saves where a turn writes `output` tokens.

    `anew` is the share of its context that a turn computes again, because it was evicted.
    """
    write_s = SUMMARY_TOKENS * (costs.decode_s + costs.reread_s * context)
    cost_s = (INSTRUCTION_TOKENS + after) * costs.fill_s + write_s
    saves_s = (context - after) * (output * costs.reread_s + anew * costs.fill_s)
    return Payment(context, after, cost_s, max(0.0, saves_s))


def compaction_row(program: Program) -> dict[str, Any] | None:
    """A row of the advice, if a summary would pay in as many turns as there were so far."""
    calls = list(program.recorded)
    costs = None if program.is_template else Costs.of(calls)
    if costs is None:
        return None
    longest = max(calls, key=lambda one: one.prompt)
    begins = [tokens for _, tokens in (*longest.tools, *longest.segments[:1])]
    kept = sum(tokens for _, tokens in longest.segments[1:][-KEPT_MESSAGES:])
    after = sum(begins) + SUMMARY_TOKENS + kept
    numbers = {one.number: one for one in calls}
    later = [(one, numbers[one.follows]) for one in calls if one.follows in numbers]
    new = [max(0, one.prompt - before.prompt) for one, before in later]
    again = sum(max(0, one.computed - some) for (one, _), some in zip(later, new, strict=True))
    anew = again / max(1, sum(one.prompt for one, _ in later))
    output = sum(one.output for one in calls) / len(calls)
    found = payment(costs, longest.prompt, after, output, anew)
    so_far = (len(longest.segments) + 1) // 2
    if found.turns is None or found.turns > so_far or not 0 < after < longest.prompt:
        return None
    return _row(program, found)


def _row(program: Program, found: Payment) -> dict[str, Any]:
    says = (
        f"a conversation has {found.context:,} tokens: a summary of it takes {found.cost_s:.1f} s "
        f"and saves {found.saves_s:.2f} s a turn, so it pays after {found.turns} turns"
    )
    told = repr((program.name, program.model, program.begins, "length"))
    id = hashlib.blake2b(told.encode(errors="replace"), digest_size=6)
    same = {name: getattr(program, name) for name in ("name", "model", "engine", "is_template")}
    counts = {name: getattr(program, name) for name in ("calls", "prompt_tokens", "cached_tokens")}
    none = dict.fromkeys(("begins", "message", "role", "tool", "before", "after"))
    row = {"id": id.hexdigest(), "cause": "length", "variables": [], "offset": 0, "says": says}
    return {**same, **counts, **none, **row, "times": program.calls, "lost_tokens": 0}
