"""How many computed tokens of a prompt take as long as one token of an answer. It is pure."""

from __future__ import annotations

from dataclasses import dataclass

# Until it was measured. On two cores a model of 350M parameters took 5: it computed 474 tokens of a
# prompt a second, and made 94 of an answer.
USUAL = 8.0
# Fewer tokens say little: a request has a cost of its own.
LEAST_COMPUTED, LEAST_MADE = 64, 4
# The weight of the newest answer. Answers beside others take longer.
_NEWEST = 0.2


@dataclass(slots=True)
class AnswerPace:
    """The mean of the last answers."""

    ratio: float = USUAL

    def note(self, computed: int, fill_s: float, made: int, generate_s: float) -> None:
        """An answer of `made` tokens was made behind so many computed tokens of its prompt."""
        if computed < LEAST_COMPUTED or made < LEAST_MADE or fill_s <= 0:
            return
        found = (generate_s / (made - 1)) / (fill_s / computed)
        self.ratio += _NEWEST * (found - self.ratio)
