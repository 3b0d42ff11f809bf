"""The table of `weftline bench on-vllm`: weftline beside LangChain on one vLLM, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from bench.harness.bound import bound
from bench.harness.column import COLUMN, NAME
from bench.harness.metrics import Metric, sign_test, spread
from bench.harness.results import RAW, ratios, values, write
from bench.harness.runs import Run, run_from
from bench.harness.systems import BASELINE, SERVER_ONLY, SYSTEMS
from bench.harness.workload import load
from bench.report.overview import ALIKE
from bench.report.tables import NOTHING, Report, table
from weftline.errors import InvalidRequest

HEADER = (
    "workload",
    "round trip",
    "baseline",
    "median",
    "in front",
    "inside",
    "bound",
    "others' load",
)
WAYS: Mapping[str, str] = MappingProxyType({name: name for name in SERVER_ONLY})


def write_pairs(folder: Path) -> tuple[Path, str]:
    """Write FOLDER.json beside a folder of raw runs, and return its path with the table.

    Raises InvalidRequest without raw runs.
    """
    raw = {path.stem: path for path in (folder / RAW).glob("*.json")}
    reports = [json.loads(raw[name].read_text()) for name in COLUMN if name in raw]
    if not reports:
        raise InvalidRequest(
            f"no pairs have been measured in {folder}: run `weftline bench {NAME}`"
        )
    first = reports[0]
    found: dict[str, Any] = {"date": first["began"], **{name: first[name] for name in ALIKE}}
    found["rows"] = [row for report in reports for row in _rows(report)]
    return write(folder.parent, folder.name, found), pairs_table(found)


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """A row for each round trip, metric and baseline: LangChain, and its best semaphore if any."""
    name, runs = report["workload"], [run_from(record) for record in report["runs"]]
    workload, column = load(name), COLUMN[name]
    for delay in dict.fromkeys(run.delay_ms for run in runs):
        there = [run for run in runs if run.delay_ms == delay]
        for chosen in column.metrics or (next(iter(workload.metrics)),):
            metric = workload.metrics[chosen]
            label = f"{workload.title}, {there[0].point}"
            if column.metrics:
                label += f", {chosen}"
            for baseline in _baselines(metric, there):
                yield _row(name, label, metric, there, baseline)
            if column.unchanged is not None:
                ways = {SERVER_ONLY[1]: column.unchanged}
                yield _row(name, f"{label}, ChatOpenAI", metric, there, BASELINE, ways)


def _row(
    name: str,
    label: str,
    metric: Metric,
    runs: Sequence[Run],
    baseline: str,
    ways: Mapping[str, str] = WAYS,
) -> dict[str, Any]:
    """One comparison. `ways` has the system that stands in the column of each of our ways."""
    return {
        "workload": name,
        "label": label,
        "delay_ms": runs[0].delay_ms,
        "unit": metric.unit,
        "baseline": baseline,
        **_paired(metric, runs, baseline, ways),
        "bound": _bound(metric, runs, baseline, ways, load(name).visits),
        "load": median(run.load for run in runs),
    }


def _of(runs: Sequence[Run], system: str) -> list[Run]:
    return [run for run in runs if run.system == system]


def _baselines(metric: Metric, runs: Sequence[Run]) -> Iterator[str]:
    """The plain client, and the measured semaphore with the best median."""
    yield BASELINE
    semaphores = dict.fromkeys(r.system for r in runs if SYSTEMS[r.system].at_once is not None)
    found = {name: list(values(metric, _of(runs, name)).values()) for name in semaphores}
    medians = {name: median(of) for name, of in found.items() if of}
    if medians:
        yield (max if metric.higher else min)(medians, key=lambda name: medians[name])


def _paired(
    metric: Metric, runs: Sequence[Run], baseline: str, ways: Mapping[str, str]
) -> dict[str, Any]:
    """The baseline's median, and the ratios of each of weftline's ways to it."""
    theirs = values(metric, _of(runs, baseline))
    ours = {name: values(metric, _of(runs, ways.get(name, ""))) for name in SERVER_ONLY}
    return {
        "median": median(theirs.values()) if theirs else None,
        "ratios": {name: ratios(metric, of, theirs) for name, of in ours.items()},
    }


def _bound(
    metric: Metric, runs: Sequence[Run], baseline: str, ways: Mapping[str, str], visits: bool
) -> float | None:
    """The bound of the first repetition, the only one whose calls are kept."""
    first = {run.system: run for run in runs if run.repeat == 0}
    ours = [first[name] for name in ways.values() if name in first]
    return bound(metric, first[baseline], ours, visits=visits) if baseline in first else None


def pairs_table(found: Mapping[str, Any]) -> str:
    """The table in Markdown."""
    inside, in_front = SERVER_ONLY
    cells = (
        (
            row["label"],
            f"{row['delay_ms']} ms",
            SYSTEMS[row["baseline"]].title,
            NOTHING if row["median"] is None else f"{row['median']:.3g} {row['unit']}",
            _cell(row["ratios"][in_front]),
            _cell(row["ratios"][inside]),
            NOTHING if row["bound"] is None else f"{row['bound']:.2f}",
            f"{row['load']:.1f}",
        )
        for row in found["rows"]
    )
    return table(HEADER, cells)


def _cell(paired: Sequence[float]) -> str:
    """The median ratio, its quartiles, how many of the pairs it won, and the sign test."""
    if not paired:
        return NOTHING
    middle, won = spread(paired), sum(one > 1 for one in paired)
    quartiles = f"{middle.low:.2f} to {middle.high:.2f}"
    tested = f"{won} of {len(paired)}, p = {sign_test(paired):.2g}"
    return f"**{middle.median:.2f}** ({quartiles}; {tested})"
