"""The metrics of a run, the median and quartiles of several repetitions, and a test of pairs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from bench.harness.stage import App
from bench.harness.texts import Count


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of all applications, or of those of one kind; `higher` means that more is better."""

    unit: str
    of: Callable[[Sequence[App]], float]
    kind: str | None = None
    higher: bool = False

    def value(self, apps: Sequence[App]) -> float | None:
        """The number over the applications that succeeded; None if none did."""
        good = [app for app in apps if app.error is None and self.kind in (None, app.kind)]
        return self.of(good) if good else None


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of `n` repetitions with its quartiles."""

    median: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """The median and the inclusive quartiles: those of two values lie between them."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


def sign_test(ratios: Sequence[float]) -> float:
    """The probability that so few of the ratios, or fewer, lie on one side of 1, on either side, if
    both sides are equally likely.

    It is the exact two-sided sign test of pairs. A ratio of exactly 1 counts for neither side.
    """
    above, below = sum(one > 1 for one in ratios), sum(one < 1 for one in ratios)
    ways = sum(comb(above + below, count) for count in range(min(above, below) + 1))
    return min(1.0, 2 * ways / 2 ** (above + below))


def mean_seconds(kind: str | None = None) -> Metric:
    """Mean seconds of an application, from its start to its end."""
    return Metric("s", lambda apps: statistics.fmean(app.seconds for app in apps), kind)


def percentile(share: float, kind: str | None = None) -> Metric:
    """The seconds within which a `share` of the applications is done."""

    def of(apps: Sequence[App]) -> float:
        return sorted(app.seconds for app in apps)[min(len(apps) - 1, int(share * len(apps)))]

    return Metric("s", of, kind)


def makespan() -> Metric:
    """Seconds from the first start to the last end."""
    return Metric("s", _span)


def _span(apps: Sequence[App]) -> float:
    return max(app.start + app.seconds for app in apps) - min(app.start for app in apps)


def ms_per_token(kind: str | None = None) -> Metric:
    """The papers' normalised latency: seconds by output tokens, the mean over applications."""
    mean = statistics.fmean
    return Metric("ms/token", lambda apps: mean(a.seconds / a.output for a in apps) * 1e3, kind)


def apps_per_minute() -> Metric:
    """Finished applications divided by the makespan."""
    return Metric("apps/min", lambda apps: 60 * len(apps) / _span(apps), higher=True)


def repeated_share(prompts: Sequence[str], count: Count) -> float:
    """The share of tokens that stand in paragraphs of at least two prompts (Parrot, Table 1).

    A paragraph is a line. One long document in two prompts counts; a sentence that occurs in two
    documents does not.
    """
    lines = [[line for line in prompt.splitlines() if line.strip()] for prompt in prompts]
    seen = Counter(line for prompt in lines for line in set(prompt))
    total = repeated = 0
    for prompt in lines:
        for line in prompt:
            tokens = count(line)
            total += tokens
            repeated += tokens if seen[line] > 1 else 0
    return repeated / total if total else 0.0
