"""The seconds of a step, and how many tokens of a prompt fit into one beside answers that are read.

This module is pure. Our own scheduler, the simulated engine and our scheduler inside vLLM use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weftline_engine.api import PROMPT_ITL_S, SLOWER

# Fewer tokens of a prompt in a step take a GPU as long.
LEAST_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The seconds of a step, as a sum: `step_s` is its constant.

    `fill_s` is added for each computed prompt token, and `attend_s` for each token that these
    attend to. `sequence_s` is added for each decoding sequence, and `token_s` for each token in
    flight, because its KV is read.
    """

    step_s: float
    fill_s: float
    sequence_s: float = 0.0
    token_s: float = 0.0
    attend_s: float = 0.0

    def seconds(self, fill_tokens: int, decoding: int, tokens: int, attended: int = 0) -> float:
        """The seconds of a step."""
        return (
            self.step_s
            + self.fill_s * fill_tokens
            + self.sequence_s * decoding
            + self.token_s * tokens
            + self.attend_s * attended
        )

    def added(self, tokens: int, behind: int) -> float:
        """What so many tokens of a prompt add to a step, behind `behind` of its tokens."""
        attended = attended_by(tokens, behind)
        return self.fill_s * tokens + self.token_s * (behind + tokens) + self.attend_s * attended

    def fitting(self, left_s: float, behind: int, most: int) -> int:
        """The most tokens of a prompt that add at most `left_s` to a step, and at most `most`."""
        square = self.attend_s / 2
        each = self.fill_s + self.token_s + self.attend_s * (behind + 0.5)
        left_s -= self.token_s * behind
        if left_s <= 0.0 or most <= 0:
            return 0
        if left_s >= most * (each + square * most):
            return most
        # The positive root of square * n² + each * n = left_s, in the form without cancellation.
        return min(most, int(2 * left_s / (each + math.sqrt(each * each + 4 * square * left_s))))


def attended_by(tokens: int, behind: int) -> int:
    """How many tokens these tokens of a prompt attend to, themselves among them."""
    return tokens * behind + tokens * (tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class ItlLimit:
    """The limit on the `seconds` between two tokens of an answer, on an engine with these costs.

    The first prompt of a step gets `least` tokens in any case, so that it always advances.
    """

    cost: StepSeconds
    seconds: float = PROMPT_ITL_S
    least: int = LEAST_TOKENS


class PromptSeconds:
    """The seconds that prompts have in a step beside `decoding` sequences of `held` tokens."""

    def __init__(self, limit: ItlLimit, decoding: int, held: int) -> None:
        alone_s = limit.cost.seconds(0, decoding, held)
        self._cost, self._least = limit.cost, limit.least
        self._left_s = max(limit.seconds, SLOWER * alone_s) - alone_s
        self._advances = False

    def allow(self, behind: int, most: int) -> int:
        """How many tokens of a prompt may be computed, behind `behind` of its tokens."""
        found = self._cost.fitting(self._left_s, behind, most)
        return found if self._advances else max(found, min(self._least, most))

    def spend(self, behind: int, tokens: int) -> None:
        """Note that the step computes so many."""
        self._left_s -= self._cost.added(tokens, behind)
        self._advances = True
