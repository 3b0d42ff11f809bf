"""Results as JSON under bench/results/DATE-MACHINE/: written after every run, never by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.metrics import Metric, spread
from bench.harness.stage import App
from bench.harness.texts import ROOT
from bench.harness.workload import Workload

RESULTS = ROOT / "bench" / "results"
KEPT = 1000  # characters of an answer: all that --exact compares, at its sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One repetition of one point on one system. `client_cpu_s` and `server_cpu_s` are spent during
    the run, `others_cpu_s` by the servers that were only waiting for their turn. `phases_s` are the
    seconds of all calls in each phase, where the server tells.
    """

    system: str
    point: str
    x: float
    delay_ms: int
    repeat: int
    cache: str  # "cold" or "warm"
    apps: Sequence[App]
    client_cpu_s: float
    server_cpu_s: float
    others_cpu_s: float
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def where(self) -> tuple[str, int, str]:
        return self.point, self.delay_ms, self.cache

    def to_json(self) -> dict[str, Any]:
        """Calls only of the first repetition: all of them would be megabytes."""
        record = asdict(self)
        outputs = [app.output for app in self.apps]
        record["failed"] = sum(app.error is not None for app in self.apps)
        for app, output in zip(record["apps"], outputs, strict=True):
            del app["counted"]
            app["output"] = output
            app["result"] = app["result"][:KEPT]
            if self.repeat > 0:
                del app["calls"]
        rounded: dict[str, Any] = _rounded(record)
        return rounded


def summary(
    workload: Workload, runs: Sequence[Run], baseline: str, same_texts: bool = False
) -> list[dict[str, Any]]:
    """For each point, delay, cache and system: every metric, and its ratio to the baseline's.

    Ratios are of one repetition each, so that a neighbour that disturbed both counts little.
    Above 1 is better than the baseline, whichever way the metric goes. Where all systems had the
    same texts, `same_answers` counts the applications that gave the baseline's answer, of the
    `compared` that both ran: a background has more of them the longer a run takes.
    """
    grouped: dict[tuple[str, int, str], dict[str, list[Run]]] = defaultdict(dict)
    for run in runs:
        grouped[run.where].setdefault(run.system, []).append(run)
    rows = []
    for (point, delay, cache), systems in grouped.items():
        for system, found in systems.items():
            rows.append(
                {
                    "point": point,
                    "x": found[0].x,
                    "delay_ms": delay,
                    "cache": cache,
                    "system": system,
                    "apps": sum(len(run.apps) for run in found),
                    "failed": sum(app.error is not None for run in found for app in run.apps),
                    **(_compared(found, systems[baseline]) if same_texts else {}),
                    "output_tokens": sorted({sum(app.output for app in r.apps) for r in found}),
                    "metrics": {
                        name: measured
                        for name, metric in workload.metrics.items()
                        if (measured := _measured(metric, found, systems.get(baseline, [])))
                    },
                }
            )
    return rows


def _measured(metric: Metric, runs: Sequence[Run], base: Sequence[Run]) -> dict[str, Any] | None:
    """None where no repetition has it."""
    ours, theirs = _values(metric, runs), _values(metric, base)
    if not ours:
        return None
    found = {"unit": metric.unit, **spread(list(ours.values())).to_json()}
    pairs = [(theirs[i], ours[i]) for i in ours if i in theirs]
    if pairs:
        ratios = [us / them if metric.higher else them / us for them, us in pairs]
        found["ratio"] = spread(ratios).to_json()
    return found


def _compared(runs: Sequence[Run], base: Sequence[Run]) -> dict[str, int]:
    """Applications of `runs` whose whole answer is that of the same one of `base`."""
    pairs = [
        (ours, theirs)
        for run, other in zip(runs, base, strict=False)
        for ours, theirs in zip(run.apps, other.apps, strict=False)
    ]
    same = sum(ours.error is None and ours.result == theirs.result for ours, theirs in pairs)
    return {"same_answers": same, "compared": len(pairs)}


def _values(metric: Metric, runs: Sequence[Run]) -> dict[int, float]:
    """By repetition."""
    found = ((run.repeat, metric.value(run.apps)) for run in runs)
    return {repeat: value for repeat, value in found if value is not None}


def write(folder: Path, name: str, report: Mapping[str, Any]) -> Path:
    """Write `report` as NAME.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(_rounded(report), indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)
    return path


def _rounded(value: Any) -> Any:
    """Four digits after the point: a tenth of a millisecond."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
