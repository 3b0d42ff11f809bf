"""The order of sequences in a step, and how many tokens each may have, computed from the hints.

Hints only change the order: every sequence is computed exactly, whatever its hints say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from weftline_engine.bookkeeping.schedule.sequence import Rank, Sequence

# Arriving this many steps later counts as much as twice the work left: about 10 s at 25 ms a step,
# as in the server.
_AGING_STEPS = 400
# Doublings of work by which throughput comes after latency. A throughput sequence still comes
# before a latency one that arrives 6,400 steps later.
_STAND_BACK = 16.0
# The weight of one level of depth in the application's graph, in the same unit.
_DEPTH = 0.5


def urgency(sequence: Sequence) -> Rank:
    """The sort key that the last `rank` gave: the smaller, the sooner."""
    return sequence.rank


def rank(sequences: Iterable[Sequence]) -> None:
    """Set the rank of all sequences in the engine.

    Open sequences come after complete ones: their prompts may wait for the others' output. Then the
    application with the least work left is first, and within it the deepest call. Age counts as the
    step of arrival, not as the time waited. So the order of two sequences changes only with their
    hints, they cannot preempt each other in turn, and no sequence is overtaken for ever.
    """
    scored = [(one, _group(one), _score(one)) for one in sequences]
    first: dict[tuple[str, bool], tuple[float, int]] = {}
    for one, group, score in scored:
        first[group] = min(first.get(group, (score, one.arrival)), (score, one.arrival))
    for one, group, _ in scored:
        depth = one.born / _AGING_STEPS - _DEPTH * one.hints.depth
        one.rank = (one.open, *first[group], depth, one.arrival)


def bulk(sequence: Sequence) -> bool:
    """Whether it is for throughput: its application waits for many results together."""
    return sequence.hints.criterion == "throughput"


def _group(sequence: Sequence) -> tuple[str, bool]:
    # A sequence without an application is one of its own.
    return sequence.hints.application or f"\0{sequence.arrival}", bulk(sequence)


def _score(sequence: Sequence) -> float:
    work = math.log2(max(0, sequence.hints.work_left) + 1)
    place = sequence.hints.priority + sequence.born / _AGING_STEPS
    return work + bulk(sequence) * _STAND_BACK + place


class TokenBound:
    """Limits the tokens of a step's sequences to what its strictest latency sequence allows beside
    it. Without such a sequence there is no limit.

    Latency sequences with a bound are always allowed: the server decides how many of them run
    together, and counts their common tokens once. Here they only keep out the others.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._most = math.inf

    def allows(self, sequence: Sequence) -> bool:
        """Whether this sequence may join the step; the first always may."""
        if sequence.hints.token_bound is not None and not bulk(sequence):
            return True
        return not self._tokens or self._tokens + len(sequence.tokens) <= self._most

    def add(self, sequence: Sequence) -> None:
        self._tokens += len(sequence.tokens)
        beside = sequence.hints.token_bound
        if beside is not None and not bulk(sequence):
            self._most = min(self._most, beside + len(sequence.tokens))


class PromptBudget:
    """Divides the prompt tokens of a step.

    An application with more work than fits into one step gets only `beside` tokens behind another
    application that decodes. It ends late in any case, and the other ends sooner if its steps are
    short.
    """

    def __init__(self, tokens: int, beside: int) -> None:
        self._step = self._left = tokens
        self._beside = beside
        self._decodes: tuple[str, bool] | None = None  # the first application that decodes

    def allow(self, sequence: Sequence) -> int:
        """How many prompt tokens this sequence may compute, after all more urgent ones."""
        first = self._decodes
        if first is None or first == _group(sequence) or sequence.hints.work_left <= self._step:
            return self._left
        return min(self._left, self._beside)

    def spend(self, sequence: Sequence, tokens: int) -> None:
        """The sequence computes `tokens` of its prompt; 0 if it decodes."""
        self._left -= tokens
        self._beside -= tokens
        if tokens == 0 and self._decodes is None:
            self._decodes = _group(sequence)
