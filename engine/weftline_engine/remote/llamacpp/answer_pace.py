"""How many computed tokens of a prompt take as long as one token of an answer, or as its copy.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

# Until it was measured. On two cores a model of 350M parameters took 5: it computed 474 tokens of a
# prompt a second, and made 94 of an answer.
USUAL = 8.0
# Copying a token costs this share of computing it, at most and at least. A copy is a file that is
# written or read. It took 0.06 ms a token on a CPU, for a model of 135M parameters. For 8B and 1.3
# GB a second it takes 0.1 ms, where a token of a prompt takes 20 ms on a CPU.
MOST_SHARE, LEAST_SHARE = 0.05, 0.005
COPY_S = 1e-4
# Fewer tokens say little: a request has a cost of its own.
LEAST_COMPUTED, LEAST_MADE = 64, 4
# The weight of the newest answer. Answers beside others take longer.
_NEWEST = 0.2


@dataclass(slots=True)
class AnswerPace:
    """The mean of the last answers."""

    ratio: float = USUAL
    token_s: float | None = None  # to compute a token of a prompt

    @property
    def copy_share(self) -> float:
        """What a copied token costs, in computed tokens."""
        if self.token_s is None:
            return MOST_SHARE
        return min(MOST_SHARE, max(LEAST_SHARE, COPY_S / self.token_s))

    def note(self, computed: int, fill_s: float, made: int, generate_s: float) -> None:
        """An answer of `made` tokens was made behind so many computed tokens of its prompt."""
        if computed < LEAST_COMPUTED or fill_s <= 0:
            return
        token_s = fill_s / computed
        self.token_s = token_s if self.token_s is None else _mean(self.token_s, token_s)
        if made >= LEAST_MADE:
            self.ratio = _mean(self.ratio, generate_s / (made - 1) / token_s)


def _mean(before: float, newest: float) -> float:
    return before + _NEWEST * (newest - before)
