"""Decides how many drafts a step verifies: the number with the most expected tokens a second."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

# The most rows of a step with drafts. The C decoder's attention gives the same bits for 1 to 16
# queries (kernels/cpu/items.py), so drafts do not change the logits of the token before them.
MOST_ROWS = 16
MOST_DRAFTS = 11  # of a sequence; with its last token 12 rows, which a product's tile holds
# Drafts must make a step at least this many times as fast. Less is within the error of the costs.
LEAST_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The seconds of a step by its number of rows, measured at start.

    `seconds` are pairs of rows and seconds, ascending in both, measured for sequences of `length`
    tokens. For each token more in its sequence, a row takes `attend_s` seconds longer.
    """

    seconds: tuple[tuple[int, float], ...]
    length: int = 0
    attend_s: float = 0.0

    def __post_init__(self) -> None:
        rows = [count for count, _ in self.seconds]
        assert rows and rows == sorted(set(rows)), "rows must ascend"

    @property
    def most_rows(self) -> int:
        """The most rows that were measured. A step with more rows gets no drafts."""
        return min(MOST_ROWS, self.seconds[-1][0])

    def of(self, rows: int, tokens: int) -> float:
        """The seconds of a step of `rows` whose attention reads `tokens` tokens in all."""
        return self._by_rows(rows) + self.attend_s * max(0, tokens - rows * self.length)

    def _by_rows(self, rows: int) -> float:
        """The seconds of a step of `rows`, interpolated linearly between the measured numbers."""
        counts = [count for count, _ in self.seconds]
        at = min(max(1, bisect.bisect_left(counts, rows)), len(counts) - 1)
        (low, low_s), (high, high_s) = self.seconds[at - 1], self.seconds[at]
        if rows <= low or high == low:
            return low_s
        return low_s + (high_s - low_s) * (rows - low) / (high - low)

    def can_pay(self, lengths: Sequence[int]) -> bool:
        """Whether drafts would pay for sequences of these lengths if all of them were accepted."""
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

    `chances` has for each sequence the probability that a draft is accepted if those before it are.
    Drafts are added in the order of the probability that they and all before them are accepted. So
    there is one best choice for each number of drafts. The result is the choice with the most
    expected tokens a second.
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
