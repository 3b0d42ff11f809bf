"""Whether keys and values come back from host memory or are computed again, by measured seconds.

This module is pure and is told the time. The scheduler inside vLLM tells what its steps and its
connector's loads took, and asks before each load.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, linear_regression, median

# The steps and loads that count. Older ones had other requests beside them.
WINDOW = 32
# A step with fewer prompt tokens tells little of what one of them costs.
LEAST_FILLED = 64
# After so many contexts in turn that were computed again, one is loaded, to measure anew.
TRIAL = 32


class ReloadCosts:
    """What vLLM's steps and loads have taken.

    A step takes the seconds of a step that only decodes, and some for each prompt token. A load
    takes the seconds from its plan to its arrival, as the request that waits for it sees them.
    """

    def __init__(self) -> None:
        self._planned: deque[tuple[int, int, float]] = deque()  # steps whose result is to come
        self._computed_at = 0.0
        self._decodes: deque[float] = deque(maxlen=WINDOW)
        self._fills: deque[float] = deque(maxlen=WINDOW)  # seconds of a prompt token
        self._loading: dict[str, tuple[int, float]] = {}
        self._loads: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # tokens and seconds
        self._refused: set[str] = set()

    def planned(self, tokens: int, prompt_tokens: int, now: float) -> None:
        """A step of so many tokens was planned, with so many of prompts among them. Its result
        comes after those of earlier steps."""
        self._planned.append((tokens, prompt_tokens, now))

    def computed(self, now: float) -> None:
        """The result of the oldest planned step is there."""
        tokens, prompt_tokens, planned_at = self._planned.popleft()
        # A step that was planned ahead begins when the one before it ends.
        seconds = now - max(planned_at, self._computed_at)
        self._computed_at = now
        if tokens and not prompt_tokens:
            self._decodes.append(seconds)
        elif prompt_tokens >= LEAST_FILLED:
            base = median(self._decodes) if self._decodes else 0.0
            self._fills.append(max(0.0, seconds - base) / prompt_tokens)

    def begun(self, request: str, tokens: int, now: float) -> None:
        """The request waits for a load of so many tokens."""
        self._loading[request] = (tokens, now)

    def loaded(self, request: str, now: float) -> None:
        """The load of the request is there. Of a request that began none, nothing is noted."""
        if (begun := self._loading.pop(request, None)) is not None:
            self._loads.append((float(begun[0]), now - begun[1]))

    def ended(self, request: str) -> None:
        """The request has ended, perhaps before its load."""
        self._loading.pop(request, None)

    def least(self, running: int) -> float:
        """The fewest tokens whose load takes no longer than computing them. 0 if too little was
        measured, infinity where no load is worth its time.

        A load delays its own request alone. Computing delays the `running` ones too, by as much.
        """
        if not self._fills or not self._loads:
            return 0.0
        fixed, each = self._load()
        saved = (1 + running) * median(self._fills) - each
        return fixed / saved if saved > 0.0 else math.inf

    def pays(self, request: str, tokens: int, running: int) -> bool:
        """Whether to load so many tokens for a request, which may ask again while it waits. After
        TRIAL requests whose loads do not pay, one is loaded to measure anew."""
        if tokens >= self.least(running):
            return True
        if len(self._refused) >= TRIAL and request not in self._refused:
            self._refused.clear()
            return True
        self._refused.add(request)
        return False

    def _load(self) -> tuple[float, float]:
        """The seconds of any load, and those of each token in it."""
        tokens, seconds = zip(*self._loads, strict=True)
        if len(set(tokens)) > 1:
            each, fixed = linear_regression(tokens, seconds)
            if each >= 0.0 and fixed >= 0.0:
                return fixed, each
        return 0.0, fmean(seconds) / fmean(tokens)
