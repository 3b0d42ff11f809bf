"""How many requests a second a system takes before their latency passes a bound (Figure 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BOUND = 2.0  # times the baseline's latency at the lowest rate


def rate_within(curve: Sequence[tuple[float, float]], bound: float) -> float | None:
    """The highest rate at which latency is within `bound`, between the points of (rate, latency).

    None where already the lowest rate passes it. A curve that never does gives its last rate,
    which is then less than the system could take.
    """
    found: float | None = None
    previous: tuple[float, float] | None = None
    for rate, latency in sorted(curve):
        if latency <= bound:
            found = rate
        elif previous is not None and previous[1] <= bound:
            share = (bound - previous[1]) / (latency - previous[1])
            found = previous[0] + share * (rate - previous[0])
        previous = (rate, latency)
    return found


def sentence(report: Mapping[str, Any], ours: str, target: float) -> str | None:
    """Both systems' rates at the same bound; None where there is no curve."""
    base = next(iter(report["systems"]))
    metric = next(iter(report["summary"][0]["metrics"]))
    curves = {
        name: sorted(
            (row["x"], row["metrics"][metric]["median"])
            for row in report["summary"]
            if row["system"] == name and metric in row["metrics"]
        )
        for name in (base, ours)
    }
    if len(curves[base]) < 2 or not curves[ours]:
        return None
    bound = BOUND * curves[base][0][1]
    rates = [rate_within(curves[name], bound) for name in (base, ours)]
    if rates[0] is None or rates[1] is None:
        return None
    unit = report["summary"][0]["metrics"][metric]["unit"]
    least = "at least " if rates[1] == curves[ours][-1][0] else ""
    return (
        f"Within {bound:.3g} {unit}, twice the baseline's at its lowest rate, the baseline takes "
        f"{rates[0]:.2g} requests a second and weftline {least}{rates[1]:.2g}: "
        f"{least}{rates[1] / rates[0]:.2f} times, of {target:g} to reach."
    )
