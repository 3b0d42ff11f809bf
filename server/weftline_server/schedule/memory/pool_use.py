"""How a model's KV cache fares: what is recomputed, and how busy its engines are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weftline_engine.api import Usage
from weftline_server.schedule.memory.constants import (
    LOAD_FADES_S,
)
from weftline_server.schedule.memory.fill_cost import FillCost


class Recomputed:
    """The share of the recent prefill that had been computed before and was evicted.

    Old observations fade with the tokens computed since: after `horizon` tokens they weigh 1/e.
    """

    def __init__(self) -> None:
        self._again = 0.0
        self._all = 0.0

    @property
    def share(self) -> float | None:
        """The share; None until a prompt is counted: not every engine counts cached tokens."""
        return self._again / self._all if self._all else None

    def add(self, usage: Usage, known: int, horizon: float) -> int:
        """Count a prompt of which `known` tokens had been computed before, by this application.

        Return how many of them were computed again.
        """
        computed = usage.prompt_tokens - usage.cached_tokens
        fade = math.exp(-computed / horizon)
        again = min(computed, max(0, known - usage.cached_tokens))
        self._again = self._again * fade + again
        self._all = self._all * fade + computed
        return again


class Busy:
    """The share of the recent time in which a model's engines were busy.

    Old observations fade: after LOAD_FADES_S seconds they weigh 1/e.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._now = 0.0
        self._at: float | None = None

    def note(self, busy: float, now: float) -> None:
        """Note that this share of the engines is busy from now on."""
        if self._at is not None:
            fade = math.exp(-(now - self._at) / LOAD_FADES_S)
            self.share = self.share * fade + self._now * (1 - fade)
        self._now, self._at = busy, now

    def restart(self, now: float) -> None:
        """Forget the time before `now`: it says nothing about work that comes from now on."""
        self.share, self._at = 1.0, now


class Filling:
    """The share of the recent time in which a model's engines computed prompts, each prompt at the
    mean seconds of a token. Old prompts fade: after LOAD_FADES_S seconds they weigh 1/e. So does
    what is assumed of the time before the first prompt: that prompts took all of it.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at: float | None = None
        self._began = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Note that a prompt took these seconds."""
        if self._at is None:
            self._began = now
        self._seconds = self._faded(now) + seconds
        self._at = now

    def share(self, now: float, engines: int) -> float:
        """The share of the time of so many engines."""
        before = 1.0 if self._at is None else math.exp(-(now - self._began) / LOAD_FADES_S)
        return before + self._faded(now) / (LOAD_FADES_S * max(1, engines))

    def restart(self, now: float) -> None:
        """Forget the time before `now`: it says nothing about work that comes from now on."""
        self._seconds, self._at, self._began = 0.0, now, now

    def _faded(self, now: float) -> float:
        if self._at is None:
            return 0.0
        return self._seconds * math.exp(-(now - self._at) / LOAD_FADES_S)


@dataclass(slots=True)
class PoolUse:
    """Recent use of a model's KV cache.

    `again` counts the tokens that were computed again since the admitted applications outgrew it.
    `fill_s` is a running mean of the seconds that a call waits for a token of its prompt, and
    `fill_cost` has those that the token costs its engine. `changed` is when an application was last
    admitted beyond the room, or evicted. `forced` is when one was last admitted for its age.
    """

    recomputed: Recomputed = field(default_factory=Recomputed)
    busy: Busy = field(default_factory=Busy)
    filling: Filling = field(default_factory=Filling)
    engines: int = 1
    again: int = 0
    fill_s: float | None = None
    fill_cost: FillCost = field(default_factory=FillCost)
    changed: float = -1e9
    forced: float = -1e9
