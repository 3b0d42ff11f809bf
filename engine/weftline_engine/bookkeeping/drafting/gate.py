"""Decides how many drafts a step verifies: as many as make it generate the most tokens a second."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

# Rows of a step with drafts. The C decoder's attention is the same to the bit for 1 to 16 queries
# (kernels/cpu/items.py), so the last token of a sequence does not notice the drafts behind it.
MOST_ROWS = 16
MOST_DRAFTS = 11  # of a sequence; with its last token 12 rows, which a product's tile holds
# A smaller expected gain is within the error of the measured costs.
LEAST_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes by its rows, measured at start.

    `seconds` are pairs of rows and seconds, ascending in both, of rows behind `length` tokens. For
    each token more, a row takes `attend_s` longer.
    """

    seconds: tuple[tuple[int, float], ...]
    length: int = 0
    attend_s: float = 0.0

    def __post_init__(self) -> None:
        rows = [count for count, _ in self.seconds]
        assert rows and rows == sorted(set(rows)), "rows must ascend"

    @property
    def most_rows(self) -> int:
        """No step with more rows was measured, so none gets drafts."""
        return min(MOST_ROWS, self.seconds[-1][0])

    def of(self, rows: int, tokens: int) -> float:
        """The seconds of a step of `rows`, which see `tokens` together."""
        return self._by_rows(rows) + self.attend_s * max(0, tokens - rows * self.length)

    def _by_rows(self, rows: int) -> float:
        """Between two measured numbers of rows the seconds grow evenly."""
        counts = [count for count, _ in self.seconds]
        at = min(max(1, bisect.bisect_left(counts, rows)), len(counts) - 1)
        (low, low_s), (high, high_s) = self.seconds[at - 1], self.seconds[at]
        if rows <= low or high == low:
            return low_s
        return low_s + (high_s - low_s) * (rows - low) / (high - low)

    def can_pay(self, lengths: Sequence[int]) -> bool:
        """Whether drafts that all come true would pay beside sequences of these lengths."""
        rows, tokens = len(lengths), sum(lengths)
        least, each = LEAST_GAIN * rows / self.of(rows, tokens), tokens // rows
        most = min(self.most_rows, (1 + MOST_DRAFTS) * rows)
        return any(
            more / self.of(more, tokens + (more - rows) * each) > least
            for more in range(rows + 1, most + 1)
        )


def counts(
    lengths: Sequence[int], chances: Sequence[Sequence[float]], costs: StepCosts
) -> list[int]:
    """How many drafts each of the sequences of these lengths gets in a step where all decode.

    `chances` are the probabilities of each one's drafts to come true if those before them do. The
    drafts with the best chances are first, so each number of drafts has one best choice, and of
    these the step takes the one with the most expected tokens a second.
    """
    rows, tokens = len(lengths), sum(lengths)
    chosen = [0] * rows
    offers: list[tuple[float, int, int]] = []  # minus the chance of all so far, its place, whose
    for index, some in enumerate(chances):
        chance = 1.0
        for place, one in enumerate(some[:MOST_DRAFTS]):
            chance *= one
            offers.append((-chance, place, index))
    offers.sort()
    expected = float(rows)
    plain = rows / costs.of(rows, tokens)
    best, taken = LEAST_GAIN * plain, 0
    for number, (minus, _, index) in enumerate(offers[: max(0, costs.most_rows - rows)], 1):
        expected -= minus
        tokens += lengths[index]
        rate = expected / costs.of(rows + number, tokens)
        if rate > best:
            best, taken = rate, number
    for _, _, index in offers[:taken]:
        chosen[index] += 1
    return chosen
