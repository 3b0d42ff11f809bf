"""How often guesses are right, measured on every token that is generated.

A guess that was not verified is also compared with the token that was generated. So the rates stay
up to date without the cost of verifying.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from weftline_engine.bookkeeping.drafting.lookup import MOST_MATCHED

# The factor for the weight of older observations when one is added. For all outputs about the last
# 100 observations of each kind count, and for one output about the last 10.
_KEPT = 0.99
_KEPT_OF_OUTPUT = 0.9
# The rate that is assumed for a grammar's tokens before any was observed, and how many observations
# an assumption counts as.
_ASSUMED_FORCED = 0.9
_WORTH = 8.0
_WORTH_OF_OUTPUT = 2.0
_MOST = 0.98  # no guess counts as certain


class GuessSource(Enum):
    """The origin of a guess."""

    LOOKUP = auto()  # a text that the output may repeat
    GRAMMAR = auto()  # the only bytes that the constraint allows


@dataclass(frozen=True, slots=True)
class Guess:
    """A token, its origin, and how many tokens before it are equal at its origin."""

    token: int
    source: GuessSource
    matched: int = 0

    @property
    def kind(self) -> int:
        """The kind of the guess. One rate is kept for each kind."""
        return 0 if self.source is GuessSource.GRAMMAR else min(self.matched, MOST_MATCHED)


@dataclass(eq=False, slots=True)
class _Rate:
    hits: float
    trials: float

    def add(self, hit: float, trial: float, kept: float) -> None:
        self.hits = self.hits * kept + hit
        self.trials = self.trials * kept + trial

    @property
    def value(self) -> float:
        return self.hits / self.trials


class OutputRate:
    """How much more or less often guesses are right in one output than in all outputs."""

    def __init__(self) -> None:
        self._seen = _Rate(_WORTH_OF_OUTPUT, _WORTH_OF_OUTPUT)

    def factor(self) -> float:
        """The number of right guesses divided by the number that was expected."""
        return self._seen.value

    def add(self, hit: bool, expected: float) -> None:
        """Note whether a guess was right that had the probability `expected`."""
        self._seen.add(float(hit), expected, _KEPT_OF_OUTPUT)
        # The weight of the initial assumption does not shrink.
        self._seen.hits += (1 - _KEPT_OF_OUTPUT) * _WORTH_OF_OUTPUT
        self._seen.trials += (1 - _KEPT_OF_OUTPUT) * _WORTH_OF_OUTPUT


class GuessRates:
    """The rates of an engine, by the kind of guess."""

    def __init__(self) -> None:
        self._rates = [
            _Rate(_WORTH * (_assumed(kind) if kind else _ASSUMED_FORCED), _WORTH)
            for kind in range(MOST_MATCHED + 1)
        ]

    def of(self, guess: Guess, output: OutputRate) -> float:
        """The probability that a guess is right, if those before it are."""
        return min(_MOST, self._rates[guess.kind].value * output.factor())

    def add(self, guess: Guess, hit: bool, output: OutputRate) -> None:
        """Note whether a guess was right."""
        rate = self._rates[guess.kind]
        output.add(hit, rate.value)
        rate.add(float(hit), 1.0, _KEPT)


def _assumed(matched: int) -> float:
    """A cautious rate for a guess after `matched` equal tokens. Measured over a refine, two answers
    from texts and eight chats: 0.45 for 2, 0.61 for 3, 0.69 for 4, and 0.8 to 1 from 6 on."""
    return min(0.7, 0.1 * (matched + 1))
