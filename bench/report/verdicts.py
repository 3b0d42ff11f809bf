"""What the numbers of a workload say, in sentences: what was reached, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from bench.harness.systems import SYSTEMS
from bench.harness.workload import Workload, load
from bench.report import charts, rates

Report = Mapping[str, Any]

SCATTERED = "many_chains"  # Figure 13
PHASES = ("queue", "fill", "generate")  # of a call


def headline_rows(report: Report) -> list[Report]:
    """Ours at the first point, for each round trip."""
    first, ours = report["summary"][0]["point"], _ours(report)
    return [
        row
        for row in report["summary"]
        if (row["point"], row["system"], row["cache"]) == (first, ours, "cold")
    ]


def _ours(report: Report) -> str:
    return "weftline" if "weftline" in report["systems"] else list(report["systems"])[-1]


def verdicts(workload: Workload, report: Report) -> Iterator[str]:
    """What was reached, and where it was not, the phases that hold weftline's time."""
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
        if report["workload"] == SCATTERED:
            yield slower(report, row["system"])
        if (bar := workload.target.get("at once")) is not None:
            yield from _best_semaphore(report, row, bar)
        goal = workload.target.get("rate")
        if goal is not None and (said := rates.sentence(report, row["system"], goal)):
            yield said
        if target is not None and ratio["median"] < target:
            yield f"That is short of {target:g}: {phases(report, row)}."


def slower(report: Report, ours: str) -> str:
    """Figure 13's claim: that no application pays for the others."""
    pairs = charts.matched(report, next(iter(report["systems"])), ours)
    count = sum(mine > theirs for theirs, mine in pairs)
    return f"Of {len(pairs)} applications {count or 'none'} took longer than with the baseline."


def phases(report: Report, row: Report) -> str:
    """How weftline's calls spend their time, by what the server says of them."""
    where = (row["system"], row["point"], row["delay_ms"])
    runs = [r for r in report["runs"] if (r["system"], r["point"], r["delay_ms"]) == where]
    calls = [call for run in runs for app in run["apps"] for call in app.get("calls", ())]
    total = {name: sum(run.get("phases_s", {}).get(name, 0.0) for run in runs) for name in PHASES}
    for call in calls if not any(total.values()) else ():
        if call["queue_s"] is not None:  # of calls in a graph the server has told by itself
            rest = call["seconds"] - call["queue_s"] - call["fill_s"]
            for name, seconds in zip(PHASES, (call["queue_s"], call["fill_s"], rest), strict=True):
                total[name] += seconds
    if not any(total.values()):
        return "the server was not asked where its calls' time went"
    queue, fill = (total[name] / sum(total.values()) for name in PHASES[:2])
    cached = fmean((call["cached"] or 0) / max(1, call["prompt"]) for call in calls)
    return (
        f"its calls wait {queue:.0%} of their time, fill {fill:.0%} ({cached:.0%} of a prompt is "
        f"cached) and generate {1 - queue - fill:.0%}"
    )


def elsewhere(report: Report) -> Iterator[str]:
    """Ours over the baseline's at the points behind the first one."""
    metric = next(iter(load(report["workload"]).metrics))
    first, ours = report["summary"][0]["point"], _ours(report)
    for row in report["summary"]:
        ratio = row["metrics"].get(metric, {}).get("ratio")
        if row["system"] == ours and row["point"] != first and ratio is not None:
            yield f"At {row['point']}: {ratio['median']:.2f} times."


def _best_semaphore(report: Report, row: Report, bar: float) -> Iterator[str]:
    """Ours over the baseline behind a semaphore in the client, of the best size measured there."""
    metric = next(iter(load(report["workload"]).metrics))
    where = ("point", "delay_ms", "cache")
    by_size = {
        at_once: other["metrics"][metric]["ratio"]["median"]
        for other in report["summary"]
        if all(other[key] == row[key] for key in where)
        and (at_once := SYSTEMS[other["system"]].at_once) is not None
        and "ratio" in other["metrics"].get(metric, {})
    }
    if by_size:
        best = max(by_size, key=lambda size: by_size[size])
        found = row["metrics"][metric]["ratio"]["median"] / by_size[best]
        rival = f"the baseline with {best} at once, the best of {len(by_size)} semaphores"
        yield f"{found:.2f} times {rival}, of {bar:g} to reach."
