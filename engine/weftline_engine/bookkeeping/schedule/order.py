"""Who comes first in a step, and how many tokens it may have: what the hints decide, as numbers.

Advice only orders: every sequence is computed exactly, whatever its hints say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from weftline_engine.bookkeeping.schedule.sequence import Rank, Sequence

# Steps that weigh as much as twice the work left: about 10 s at 25 ms a step, as in the server.
_AGING_STEPS = 400
# Doublings by which throughput stands back. It overtakes what came 6,400 steps later.
_STAND_BACK = 16.0
# The weight of a place further from the application's end, in the same unit.
_DEPTH = 0.5


def urgency(sequence: Sequence) -> Rank:
    """The smaller, the sooner, as of the last `rank`."""
    return sequence.rank


def rank(sequences: Iterable[Sequence]) -> None:
    """Set the rank of all sequences in the engine.

    An open one (its prompt may wait for another's output) stands behind the complete ones. Then
    the application with the least work left is first, and in it the call that is deepest. Age is
    not time waited but the step of arrival, against which late comers start behind: the order of
    two sequences changes with their hints alone, so they cannot preempt each other in turn, and
    nothing is overtaken for ever.
    """
    scored = [(one, _group(one), _score(one)) for one in sequences]
    first: dict[tuple[str, bool], tuple[float, int]] = {}
    for one, group, score in scored:
        first[group] = min(first.get(group, (score, one.arrival)), (score, one.arrival))
    for one, group, _ in scored:
        depth = one.born / _AGING_STEPS - _DEPTH * one.hints.depth
        one.rank = (one.open, *first[group], depth, one.arrival)


def bulk(sequence: Sequence) -> bool:
    """Whether its application waits for all of many results, and not for this one."""
    return sequence.hints.criterion == "throughput"


def _group(sequence: Sequence) -> tuple[str, bool]:
    # Without an application each stands for itself.
    return sequence.hints.application or f"\0{sequence.arrival}", bulk(sequence)


def _score(sequence: Sequence) -> float:
    work = math.log2(max(0, sequence.hints.work_left) + 1)
    place = sequence.hints.priority + sequence.born / _AGING_STEPS
    return work + bulk(sequence) * _STAND_BACK + place


class TokenBound:
    """The tokens of a step's sequences: at most what its strictest latency sequence bears beside
    it, and without one any number. How many of these sequences bear each other the server knows,
    which counts what they share once: here they are let in, and hold up the others."""

    def __init__(self) -> None:
        self._tokens = 0
        self._most = math.inf

    def allows(self, sequence: Sequence) -> bool:
        """Whether one more may join; the first always may."""
        if sequence.hints.token_bound is not None and not bulk(sequence):
            return True
        return not self._tokens or self._tokens + len(sequence.tokens) <= self._most

    def add(self, sequence: Sequence) -> None:
        self._tokens += len(sequence.tokens)
        beside = sequence.hints.token_bound
        if beside is not None and not bulk(sequence):
            self._most = min(self._most, beside + len(sequence.tokens))


class PromptBudget:
    """The prompt tokens of a step. An application with more to do than fits into one gets few of
    them, `beside`, behind another one that decodes: it ends late in any case, and the other is done
    the sooner, the shorter its steps are."""

    def __init__(self, tokens: int, beside: int) -> None:
        self._step = self._left = tokens
        self._beside = beside
        self._decodes: tuple[str, bool] | None = None  # the first application that does

    def allow(self, sequence: Sequence) -> int:
        """How many of its prompt a sequence may compute, after all that are more urgent."""
        first = self._decodes
        if first is None or first == _group(sequence) or sequence.hints.work_left <= self._step:
            return self._left
        return min(self._left, self._beside)

    def spend(self, sequence: Sequence, tokens: int) -> None:
        """It computes so many of its prompt; 0 where it decodes."""
        self._left -= tokens
        self._beside -= tokens
        if tokens == 0 and self._decodes is None:
            self._decodes = _group(sequence)
