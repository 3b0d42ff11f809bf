"""The words of a replayed session: as long as the recorded texts, and shared where those were."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .trace import Turn

VOCABULARY = 2048
# A turn continues one of this many contexts. More would cost time and find little.
LOOKBACK = 40


@dataclass(slots=True)
class Conversation:
    """The prompts of one session. Two sessions share no word sequence: each is salted with its id.

    A context is a prompt with its answer, as numbers of words. A turn continues the newest context
    that is long enough for what it shares, of its own agent if there is one.
    """

    salt: str
    _rng: random.Random = field(init=False)
    _contexts: list[tuple[str, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.salt)

    def prompt(self, turn: Turn) -> list[int]:
        """The words of the turn's prompt."""
        shared = self._base(turn)[: turn.shared]
        fresh = max(1, turn.input - len(shared))
        return shared + [self._rng.randrange(VOCABULARY) for _ in range(fresh)]

    def answered(self, turn: Turn, prompt: list[int], answer: list[int]) -> None:
        """Remember the context that a turn has left."""
        self._contexts.append((turn.agent, prompt + answer))
        del self._contexts[:-LOOKBACK]

    def _base(self, turn: Turn) -> list[int]:
        found = [one for one in reversed(self._contexts) if len(one[1]) >= turn.shared]
        own = [words for agent, words in found if agent == turn.agent]
        if own:
            return own[0]
        longest = max((words for _, words in self._contexts), key=len, default=[])
        return found[0][1] if found else longest
