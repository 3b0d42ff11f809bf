"""Whether keys and values come back from host memory or are computed again, by measured seconds.

This module is pure and is told the time. The scheduler inside vLLM tells what its connector's loads
took, and asks before each load.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, linear_regression

from weftline_engine.remote.vllm.step_meter import WINDOW, StepMeter

# After so many contexts in turn that were computed again, one is loaded, to measure anew.
TRIAL = 32


class ReloadCosts:
    """What vLLM's loads have taken, beside what its steps take.

    A load takes the seconds from its plan to its arrival, as the request that waits for it sees
    them.
    """

    def __init__(self, steps: StepMeter) -> None:
        self._steps = steps
        self._loading: dict[str, tuple[int, float]] = {}
        self._loads: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # tokens and seconds
        self._refused: set[str] = set()

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
        fill_s = self._steps.fill_s
        if fill_s is None or not self._loads:
            return 0.0
        fixed, each = self._load()
        saved = (1 + running) * fill_s - each
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
