"""What a prompt token costs the engines of a model, measured on their newest prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from weftline_engine.api import Usage
from weftline_server.schedule.memory.constants import FEWEST_TIMED, MOST_ENGINES, PROMPTS_KEPT


@dataclass(slots=True)
class _Engine:
    """The newest prompts of an engine, each with its start, its end and its computed tokens."""

    prompts: deque[tuple[float, float, int]] = field(
        default_factory=lambda: deque(maxlen=PROMPTS_KEPT)
    )
    seconds: float = 0.0  # in which any of them was computed
    tokens: int = 0


class FillCost:
    """The seconds of an engine's time for each prompt token that it computes.

    An engine computes several prompts in one step, and each of them takes as long as all of them.
    So what counts is the time in which any of them was computed. Five prompts of 711 tokens took a
    vLLM on two cores 15 s together. By the time of each, the room of an agent that had ended would
    be kept for 15 s, as if its context cost that much. It costs 3 s.
    """

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}

    @property
    def seconds(self) -> float | None:
        """The seconds of a token; None until a prompt was measured."""
        tokens = sum(one.tokens for one in self._engines.values())
        return sum(one.seconds for one in self._engines.values()) / tokens if tokens else None

    def add(self, engine: str, usage: Usage) -> None:
        """Count a prompt that an engine has computed, at least in part."""
        tokens = usage.prompt_tokens - usage.cached_tokens
        if tokens < FEWEST_TIMED:
            return
        one = self._engines[engine] = self._engines.pop(engine, _Engine())
        if len(self._engines) > MOST_ENGINES:
            del self._engines[next(iter(self._engines))]
        one.prompts.append((usage.started, usage.filled, tokens))
        one.seconds = _covered(one.prompts)
        one.tokens = sum(count for _, _, count in one.prompts)


def _covered(prompts: Iterable[tuple[float, float, int]]) -> float:
    """The seconds in which any of the prompts was computed."""
    covered, until = 0.0, float("-inf")
    for started, filled, _ in sorted(prompts):
        covered += max(0.0, filled - max(started, until))
        until = max(until, filled)
    return covered
