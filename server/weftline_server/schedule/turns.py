"""When the turn of an application comes: the order of everything that waits, here and in engines.

An application lets later ones go first for half as long as its own work takes, and no longer. So
small applications do not wait for large ones, and a large one is late by at most half of its own
time. Its turn does not change while its calls run. So all its calls have it, the last one too, and
an application that has begun goes before one that came later with as much to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from weftline.contract.protocol import Criterion
from weftline_engine.api import PRIORITY_S

# The share of its own time for which an application lets later ones go first. A chain of three
# calls behind eight clients with short ones on two places took 6.7 s in the order of arrival, and
# 10.6 and 15.0 s with shares of a half and of 1. In a mix of chats, chains and map-reduces the
# mean application took 2.38 and 2.24 times its time on an idle engine (4.04 in the order of
# arrival).
SHARE = 0.5
# An application lets later ones go first for at most this many seconds.
MOST_LATER_S = 80.0
# A throughput call lets others go first for this many seconds more.
STAND_BACK_S = 30.0
# A call is never overtaken by one of the same priority whose application came this much later.
MOST_OVERTAKEN_S = MOST_LATER_S + STAND_BACK_S
# Each call counts this much less than the next one: the last twenty count for two thirds.
FADES = 0.95


class Pace:
    """The seconds that tokens of an application's work take on each model, as calls show it.

    Estimates of work may be wrong by a factor, such as where answers are shorter than their bound.
    The seconds are those of estimated tokens, so the factor cancels out. Prompts and outputs are
    told apart: with one pace for both, beside short chats an application of long prompts counted
    ten times its own time.
    """

    def __init__(self) -> None:
        self._fill: dict[str, _Mean] = {}
        self._generate: dict[str, _Mean] = {}

    def learn(self, model: str, prompt: int, fill_s: float, output: int, generate_s: float) -> None:
        """A call has taken `fill_s` for a prompt that was estimated at `prompt` tokens, and
        `generate_s` for an output."""
        self._fill.setdefault(model, _Mean()).add(prompt, fill_s)
        self._generate.setdefault(model, _Mean()).add(output, generate_s)

    def seconds(self, model: str, prompt: int, output: int) -> float:
        """The time of calls on `model`, one after the other.

        Until a call has ended there it is 0. A guess puts the first applications of a server
        behind later ones, if the engine is faster than the guess.
        """
        fill, generate = self._fill.get(model), self._generate.get(model)
        if fill is None or generate is None:
            return 0.0
        return prompt * fill.each_s + output * generate.each_s


@dataclass(slots=True)
class _Mean:
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def each_s(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = FADES * self.tokens + tokens
        self.seconds = FADES * self.seconds + seconds


def turn(since: float, own_s: float, criterion: Criterion, priority: int) -> float:
    """The time of an application's turn: it has had work `since` then, which takes `own_s` in all.

    An application that sends its calls one by one has other work each time. Its earlier waiting was
    tried as a credit: with waiting agents on a crowded cache, applications took a tenth longer.
    """
    later = min(SHARE * own_s, MOST_LATER_S)
    if criterion is Criterion.THROUGHPUT:
        later += STAND_BACK_S
    return since + later + PRIORITY_S * priority
