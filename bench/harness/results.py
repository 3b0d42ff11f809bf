"""Summaries under bench/results/DATE-MACHINE, made from the raw runs in its ignored folder raw/.

A summary holds medians, quartiles and counts. It is never written by hand.
"""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.harness import machine
from bench.harness.bound import bound
from bench.harness.metrics import Metric, spread
from bench.harness.runs import Run, rounded, run_from
from bench.harness.systems import SERVER_ONLY
from bench.harness.texts import ROOT
from bench.harness.workload import Workload, load

RESULTS = ROOT / "bench" / "results"
RAW = "raw"  # the folder of the raw runs, beside their summaries; git ignores it
WIDTH = 160  # characters of a line of JSON
SHORT = 40  # items of a list that are no longer than this share a line
PHASES = ("queue", "fill", "generate")  # of a call
# What a summary takes over from the report of the raw runs, beside its date and its rows.
TAKEN = (
    "workload",
    "title",
    "partial",
    "seconds",
    "scale",
    "model",
    "dtype",
    "vllm_dtype",
    "vllm_probe_ms",
    "kv_tokens",
    "machine",
    "systems",
    "prepared",
    "repeated_tokens",
)


def summarise(report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a report of raw runs."""
    runs = [run_from(record) for record in report["runs"]]
    found: dict[str, Any] = {"date": report["began"], **{name: report[name] for name in TAKEN}}
    found["repeats"] = max((run.repeat + 1 for run in runs), default=0)
    found["rows"] = rows(load(report["workload"]), runs, next(iter(report["systems"])))
    summary: dict[str, Any] = rounded(found)
    return summary


def rows(workload: Workload, runs: Sequence[Run], baseline: str) -> list[dict[str, Any]]:
    """For each point, round trip and system: every metric, and its ratio to the baseline's.

    A ratio compares two systems in the same repetition, so that a neighbour that disturbs both
    counts little. A ratio above 1 is better than the baseline, whichever way the metric goes.
    """
    grouped: dict[tuple[str, int], dict[str, list[Run]]] = defaultdict(dict)
    for run in runs:
        grouped[run.where].setdefault(run.system, []).append(run)
    return [
        {
            "point": point,
            "x": found[0].x,
            "delay_ms": delay,
            "system": system,
            "apps": sum(len(run.apps) for run in found),
            "failed": sum(app.error is not None for run in found for app in run.apps),
            "cached_share": _cached_share(found),
            **_bound(workload, found, systems, baseline),
            "output_tokens": sorted({sum(app.output for app in r.apps) for r in found}),
            **_phases(found),
            "metrics": {
                name: measured
                for name, metric in workload.metrics.items()
                if (measured := _measured(metric, found, systems.get(baseline, [])))
            },
        }
        for (point, delay), systems in grouped.items()
        for system, found in systems.items()
    ]


def _bound(
    workload: Workload, found: Sequence[Run], systems: Mapping[str, Sequence[Run]], baseline: str
) -> dict[str, Any]:
    """The bound of the headline's ratio on the same engine, in the baseline's row. The calls of the
    first repetition count, because the others' are not kept."""
    if found is not systems.get(baseline):
        return {}
    theirs, ours = _first(found), [_first(systems[n]) for n in SERVER_ONLY if n in systems]
    metric = next(iter(workload.metrics.values()))
    reached = bound(metric, theirs, ours, visits=workload.visits)
    return {} if reached is None else {"bound": reached}


def _first(runs: Sequence[Run]) -> Run:
    return min(runs, key=lambda run: run.repeat)


def _cached_share(runs: Sequence[Run]) -> float | None:
    """The share of the prompts' tokens that were in the KV cache; None if it is not reported."""
    calls = [call for run in runs for app in run.apps for call in app.calls]
    told = [(call.prompt, call.cached) for call in calls if call.cached is not None]
    prompts = sum(prompt for prompt, _ in told)
    return sum(cached for _, cached in told) / prompts if prompts else None


def _measured(metric: Metric, runs: Sequence[Run], base: Sequence[Run]) -> dict[str, Any] | None:
    """The metric's spread and ratio; None where no repetition has it."""
    ours, theirs = values(metric, runs), values(metric, base)
    if not ours:
        return None
    found = {"unit": metric.unit, **spread(list(ours.values())).to_json()}
    if paired := ratios(metric, ours, theirs):
        found["ratio"] = spread(paired).to_json()
    return found


def ratios(metric: Metric, ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """How many times better ours is, for each repetition that both have, in their order."""
    pairs = [(theirs[i], ours[i]) for i in sorted(ours) if i in theirs]
    return [us / them if metric.higher else them / us for them, us in pairs]


def values(metric: Metric, runs: Sequence[Run]) -> dict[int, float]:
    """The metric's values by repetition."""
    found = ((run.repeat, metric.value(run.apps)) for run in runs)
    return {repeat: value for repeat, value in found if value is not None}


def _phases(runs: Sequence[Run]) -> dict[str, Any]:
    """Seconds of all calls in each phase, and the mean cached share of a prompt.

    The server's own sums are used if it was asked for them, else the calls of its graphs. The
    result is empty if neither is known.
    """
    calls = [call for run in runs for app in run.apps for call in app.calls]
    total = {name: sum(run.phases_s.get(name, 0.0) for run in runs) for name in PHASES}
    if not any(total.values()):
        for call in calls:
            if call.queue_s is not None and call.fill_s is not None:
                rest = call.seconds - call.queue_s - call.fill_s
                for name, seconds in zip(PHASES, (call.queue_s, call.fill_s, rest), strict=True):
                    total[name] += seconds
    if not any(total.values()) or not calls:
        return {}
    cached = fmean((call.cached or 0) / max(1, call.prompt) for call in calls)
    return {"phases_s": total, "cached": cached}


def write_runs(folder: Path, name: str, report: Mapping[str, Any]) -> Path:
    """Write a report of raw runs below `folder`, and its summary; return where the summary is."""
    write(folder / RAW, name, report)
    return write(folder, name, summarise(report))


def write(folder: Path, name: str, report: Mapping[str, Any]) -> Path:
    """Write `report` as NAME.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(dumps(rounded(report)) + "\n")
    fresh.replace(path)
    return path


def dated(about: Mapping[str, Any], results: Path = RESULTS) -> Path:
    """Today's folder of the machine that `about` describes."""
    return results / f"{datetime.date.today().isoformat()}-{machine.slug(about['cores'])}"


def stamp(about: Mapping[str, Any]) -> dict[str, Any]:
    """The first fields of a summary of bench/micro: the date and the machine."""
    return {"date": datetime.date.today().isoformat(), "machine": about}


def dumps(value: Any, indent: str = "") -> str:
    """JSON for a reader: a value that fits takes one line of WIDTH, and short items
    share a line.
    """
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(flat) <= WIDTH:
        return flat
    deeper = indent + " "
    if isinstance(value, list):
        return f"[\n{_packed((dumps(item, deeper) for item in value), deeper)}\n{indent}]"
    named = (
        f"{json.dumps(str(key), ensure_ascii=False)}: {dumps(item, deeper)}"
        for key, item in value.items()
    )
    return f"{{\n{_packed(named, deeper)}\n{indent}}}"


def _packed(items: Iterable[str], indent: str) -> str:
    """The items with commas between them, as many short ones on a line as fit."""
    lines: list[str] = []
    short = False  # whether the last line holds short items
    for item in items:
        joins = short and len(item) <= SHORT
        short = len(item) <= SHORT
        if joins and len(indent) + len(lines[-1]) + len(item) + 3 <= WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return ",\n".join(indent + line for line in lines)
