"""States a workload's result in sentences: the ratios, the targets, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.harness.systems import SERVER_ONLY, SYSTEMS
from bench.harness.workload import Workload, load

Report = Mapping[str, Any]

BOUND = 2.0  # times the baseline's latency at its lowest rate


def headline_rows(report: Report) -> list[Report]:
    """Our rows at the first point, one for each round trip."""
    first, ours = report["rows"][0]["point"], _ours(report)
    return [
        row
        for row in report["rows"]
        if (row["point"], row["system"], row["cache"]) == (first, ours, "cold")
    ]


def same_engine_rows(report: Report) -> list[Report]:
    """Rows at the first point of our server on the baseline's engine, one for each round trip: with
    our scheduler inside where that was measured, else in front of it."""
    first = report["rows"][0]["point"]
    found: dict[int, Report] = {}
    for system in SERVER_ONLY:
        for row in report["rows"]:
            if (row["point"], row["system"], row["cache"]) == (first, system, "cold"):
                found.setdefault(row["delay_ms"], row)
    return [found[delay] for delay in sorted(found)]


def _ours(report: Report) -> str:
    return "weftline" if "weftline" in report["systems"] else list(report["systems"])[-1]


def verdicts(workload: Workload, report: Report) -> Iterator[str]:
    """The ratios at the first point; below its target, also the phases of weftline's calls."""
    metric = next(iter(workload.metrics))
    for row in headline_rows(report):
        ratio = row["metrics"].get(metric, {}).get("ratio")
        if ratio is None:
            continue
        target = workload.target.get(str(row["delay_ms"]))
        yield f"{ratio['median']:.2f} times at {row['delay_ms']} ms."
        for other, least in workload.beside.items():
            if (found := row["metrics"].get(other, {}).get("ratio")) is not None:
                yield f"At the same time {other}: {found['median']:.2f}, of {least:g} to reach."
        if "pairs" in report:
            yield slower(report, row["system"])
        if (bar := workload.target.get("at once")) is not None:
            yield from _best_semaphore(report, row, bar)
        goal = workload.target.get("rate")
        if goal is not None and (said := rate_sentence(report, row["system"], goal)):
            yield said
        if target is not None and ratio["median"] < target:
            yield f"That is short of {target:g}: {phases(row)}."


def slower(report: Report, ours: str) -> str:
    """Figure 13's claim: no application pays for the others."""
    pairs = report["pairs"][ours]
    count = sum(mine > theirs for theirs, mine in pairs)
    return f"Of {len(pairs)} applications {count or 'none'} took longer than with the baseline."


def phases(row: Report) -> str:
    """The phases in which the calls of a row spent their time, as their server reports it."""
    if "phases_s" not in row:
        return "the server was not asked where its calls' time went"
    total = sum(row["phases_s"].values())
    queue, fill = (row["phases_s"][name] / total for name in ("queue", "fill"))
    return (
        f"its calls wait {queue:.0%} of their time, fill {fill:.0%} ({row['cached']:.0%} of a "
        f"prompt is cached) and generate {1 - queue - fill:.0%}"
    )


def elsewhere(report: Report) -> Iterator[str]:
    """Our ratios at the points after the first one."""
    metric = next(iter(load(report["workload"]).metrics))
    first, ours = report["rows"][0]["point"], _ours(report)
    for row in report["rows"]:
        ratio = row["metrics"].get(metric, {}).get("ratio")
        if row["system"] == ours and row["point"] != first and ratio is not None:
            yield f"At {row['point']}: {ratio['median']:.2f} times."


def _best_semaphore(report: Report, row: Report, bar: float) -> Iterator[str]:
    """Our ratio over the baseline behind the best of the semaphores in the client."""
    metric = next(iter(load(report["workload"]).metrics))
    where = ("point", "delay_ms", "cache")
    by_size = {
        at_once: other["metrics"][metric]["ratio"]["median"]
        for other in report["rows"]
        if all(other[key] == row[key] for key in where)
        and other["system"] in SYSTEMS  # not one that was removed since
        and (at_once := SYSTEMS[other["system"]].at_once) is not None
        and "ratio" in other["metrics"].get(metric, {})
    }
    if by_size:
        best = max(by_size, key=lambda size: by_size[size])
        found = row["metrics"][metric]["ratio"]["median"] / by_size[best]
        among = f", the best of {len(by_size)} semaphores" if len(by_size) > 1 else ""
        rival = f"the baseline with {best} at once{among}"
        yield f"{found:.2f} times {rival}, of {bar:g} to reach."


def rate_within(curve: Sequence[tuple[float, float]], bound: float) -> float | None:
    """The highest rate at which latency is within `bound`, interpolated between (rate, latency).

    None if the lowest rate already exceeds the bound. A curve that never exceeds it gives its last
    rate, a lower limit of what the system can take.
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


def rate_sentence(report: Report, ours: str, target: float) -> str | None:
    """How many requests a second both systems take within the same latency (Figure 17).

    None if the report has no curve.
    """
    base = next(iter(report["systems"]))
    metric = next(iter(report["rows"][0]["metrics"]))
    curves = {
        name: sorted(
            (row["x"], row["metrics"][metric]["median"])
            for row in report["rows"]
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
    unit = report["rows"][0]["metrics"][metric]["unit"]
    least = "at least " if rates[1] == curves[ours][-1][0] else ""
    return (
        f"Within {bound:.3g} {unit}, twice the baseline's at its lowest rate, the baseline takes "
        f"{rates[0]:.2g} requests a second and weftline {least}{rates[1]:.2g}: "
        f"{least}{rates[1] / rates[0]:.2f} times, of {target:g} to reach."
    )
