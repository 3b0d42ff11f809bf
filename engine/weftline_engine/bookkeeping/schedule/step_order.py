"""The order of sequences in a step, and how many tokens each may have, computed from the hints.

Hints change only the order. The tokens of a sequence do not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from typing import Protocol

from weftline_engine.api import GROUP_WEIGHT, PATIENCE_S, Hints
from weftline_engine.bookkeeping.schedule.sequence import Rank
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, PromptSeconds

# The weight of one level of depth in the application's graph, in seconds of waiting.
_DEPTH_S = 5.0


class Ranked(Protocol):
    """The fields of a sequence that the order reads, and the `rank` that it sets.

    `born` is the time in seconds at which the server queued the sequence. `arrival` counts the
    sequences of the engine in the order in which they came.
    """

    rank: Rank

    @property
    def hints(self) -> Hints: ...

    @property
    def tokens(self) -> Sized: ...

    @property
    def open(self) -> bool: ...

    @property
    def born(self) -> float: ...

    @property
    def arrival(self) -> int: ...


def urgency(sequence: Ranked) -> Rank:
    """The sort key that the last `rank` gave. The smallest goes first."""
    return sequence.rank


def rank(sequences: Iterable[Ranked]) -> None:
    """Set the rank of all sequences in the engine.

    Open sequences come after complete ones, because their prompts may wait for the others' output.
    Then the application with the earliest turn is first, and within it the deepest call. The order
    of two sequences changes only with their hints, so they cannot preempt each other in turn.
    """
    scored = [(one, _group(one), one.hints.turn) for one in sequences]
    first: dict[tuple[str, bool], tuple[float, int]] = {}
    for one, group, score in scored:
        first[group] = min(first.get(group, (score, one.arrival)), (score, one.arrival))
    for one, group, _ in scored:
        depth = one.born - _DEPTH_S * one.hints.depth
        one.rank = (one.open, *first[group], depth, one.arrival)


def bulk(sequence: Ranked) -> bool:
    """Whether this is a throughput call: its application waits for many results together."""
    return sequence.hints.criterion == "throughput"


def _group(sequence: Ranked) -> tuple[str, bool]:
    # A sequence without an application is one of its own.
    return sequence.hints.application or f"\0{sequence.arrival}", bulk(sequence)


class TokenBound:
    """Limits the tokens of the sequences in a step to the smallest bound of its latency sequences.
    Without such a sequence there is no limit.

    Latency sequences with a bound are always allowed, because the server has decided how many of
    them run together, and has counted their common tokens once. The bound applies to the other
    sequences. Members of a task group are not held back by it: they may have GROUP_WEIGHT tokens
    for each token of the latency sequences, because a reader waits for the last member. The same is
    true of a throughput sequence that has waited for PATIENCE_S. One of these is always in the
    step.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._tokens = 0
        self._bounded = 0
        self._most = math.inf

    def allows(self, sequence: Ranked) -> bool:
        """Whether this sequence may join the step. The first one always may."""
        if _is_bounded(sequence) or not self._tokens:
            return True
        size = len(sequence.tokens)
        if self._tokens + size <= self._most:
            return True
        others = self._tokens - self._bounded
        if not _shares(sequence) and self._now - sequence.born <= PATIENCE_S:
            return False
        return not others or others + size <= GROUP_WEIGHT * self._bounded

    def add(self, sequence: Ranked) -> None:
        size = len(sequence.tokens)
        self._tokens += size
        beside = sequence.hints.token_bound
        if beside is not None and _is_bounded(sequence):
            self._bounded += size
            self._most = min(self._most, beside + size)


def prompt_seconds(limit: ItlLimit | None, decoding: Sequence[Ranked]) -> PromptSeconds | None:
    """The seconds of prompts in a step with these decoding sequences. None where nothing limits
    them, or nobody reads the tokens of an answer."""
    if limit is None or not any(map(is_read, decoding)):
        return None
    return PromptSeconds(limit, len(decoding), sum(len(one.tokens) for one in decoding))


def is_read(sequence: Ranked) -> bool:
    """Whether somebody waits for this very answer, so that its tokens must come in time."""
    return not bulk(sequence) and not sequence.hints.group


def _is_bounded(sequence: Ranked) -> bool:
    return sequence.hints.token_bound is not None and not bulk(sequence)


def _shares(sequence: Ranked) -> bool:
    return bool(sequence.hints.group) and not bulk(sequence)


class PromptBudget:
    """Divides the prompt tokens of a step.

    If another application decodes in the step, an application whose work left exceeds one step's
    tokens gets only `beside` prompt tokens. It ends late in any case, and the other one ends sooner
    if its steps are short. A task group that a reader waits for gets GROUP_WEIGHT times as many.
    """

    def __init__(self, tokens: int, beside: int) -> None:
        self._step = self._left = tokens
        self._beside, self._shared = beside, int(GROUP_WEIGHT * beside)
        self._decodes: tuple[str, bool] | None = None  # the first application that decodes

    def allow(self, sequence: Ranked) -> int:
        """How many prompt tokens this sequence may compute, after all more urgent ones."""
        first = self._decodes
        if first is None or first == _group(sequence) or sequence.hints.work_left <= self._step:
            return self._left
        return min(self._left, self._shared if _shares(sequence) else self._beside)

    def spend(self, sequence: Ranked, tokens: int) -> None:
        """Note that the sequence computes `tokens` of its prompt, or 0 if it decodes."""
        self._left -= tokens
        self._beside -= tokens
        self._shared -= tokens
        if tokens == 0 and self._decodes is None:
            self._decodes = _group(sequence)
