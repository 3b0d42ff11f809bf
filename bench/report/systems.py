"""One table of all systems: a line for the first point of each workload and each round trip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.harness.results import write
from bench.harness.workload import load
from bench.report.tables import NOTHING, Report, kind, table, times
from weftline.errors import InvalidRequest

SUFFIX = "-systems"
# What all reports of one run have alike, and the page tells.
ALIKE = ("machine", "scale", "model", "dtype", "vllm_dtype", "vllm_probe_ms")


def write_systems(folder: Path) -> Path:
    """Write FOLDER-systems.json beside a folder of summaries, and return its path.

    The summaries of a run with many systems are long. Where one table says enough, this file is
    committed in their place. Raises InvalidRequest without summaries.
    """
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not reports:
        raise InvalidRequest(f"there are no summaries in {folder}: run `weftline bench all` first")
    found: dict[str, Any] = {"date": reports[0]["date"], **{n: reports[0][n] for n in ALIKE}}
    commits = dict.fromkeys(report["machine"]["commit"] for report in reports)
    found["machine"] = {**found["machine"], "commit": ", ".join(commits)}
    titles = {name: of["title"] for one in reports for name, of in one["systems"].items()}
    found["systems"] = titles
    found["rows"] = [row for report in reports for row in _rows(report, list(titles))]
    return write(folder.parent, f"{folder.name}{SUFFIX}", found)


def _rows(report: Report, systems: list[str]) -> Iterator[list[Any]]:
    """The workload, round trip in ms, repetitions, unit, medians and ratios, as a list.

    Each entry of the last two is that of one system; None if it did not run, or lost calls.
    """
    metric = next(iter(load(report["workload"]).metrics))
    first = report["rows"][0]["point"]
    rows = [one for one in report["rows"] if (one["point"], one["cache"]) == (first, "cold")]
    for delay in dict.fromkeys(row["delay_ms"] for row in rows):
        found = {row["system"]: row["metrics"].get(metric) for row in rows if _at(row, delay)}
        unit = next(one["unit"] for one in found.values() if one)
        of = [found.get(name) for name in systems]
        medians = [one and one["median"] for one in of]
        ratios = [one and one["ratio"]["median"] for one in of]
        yield [report["workload"], delay, report["repeats"], unit, medians, ratios]


def _at(row: Report, delay: int) -> bool:
    return bool(row["delay_ms"] == delay and not row["failed"])


def section(found: Report, about: str) -> str:
    """The table, below a paragraph on the machine."""
    titles, repeats = list(found["systems"].values()), max(row[2] for row in found["rows"])
    cells = (
        (
            f"{load(name).title}, {unit}",
            f"{delay} ms",
            *(
                NOTHING if median is None else f"{median:.3g} ({ratio:.2f})"
                for median, ratio in zip(medians, ratios, strict=True)
            ),
        )
        for name, delay, _, unit, medians, ratios in found["rows"]
    )
    return (
        f"## All systems at the sizes of `--scale {found['scale']['name']}`, on {kind(found)}\n\n"
        f"{about}\n\nEach cell has the median of {times(repeats)} of the workload's first point, "
        f"and its ratio to {titles[0]}. A dash says that the system did not run it, or lost calls."
        f"\n\n{table(('workload', 'round trip', *titles), cells)}"
    )
