"""Draws the report's pictures as SVG: bars, curves and timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Report = Mapping[str, Any]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#999999", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#0072b2", "#d55e00", "#000000")
PHASES = {"queue": "#bbbbbb", "fill": "#0072b2", "generate": "#009e73", "call": "#56b4e9"}
SETTINGS: Any = {
    "svg.hashsalt": "weftline",  # makes equal pictures equal files
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    # matplotlib ends some lines with a space.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path


def colours(report: Report) -> dict[str, str]:
    """A colour for each system, the same in every picture of a report."""
    return dict(zip(report["systems"], COLOURS, strict=False))


def bars(report: Report, metric: str, path: Path) -> Path:
    """A group of bars for each point and round trip, with quartiles and the number of failures."""
    rows = [row for row in report["rows"] if metric in row["metrics"] and row["cache"] == "cold"]
    places = list(dict.fromkeys((row["point"], row["delay_ms"]) for row in rows))
    with pyplot.rc_context(SETTINGS):
        figure, axes = pyplot.subplots(figsize=(max(4.5, 1.7 * len(places) + 1.5), 3))
        width = 0.8 / len(report["systems"])
        for number, (name, colour) in enumerate(colours(report).items()):
            for row in (row for row in rows if row["system"] == name):
                at = places.index((row["point"], row["delay_ms"])) + number * width
                found = row["metrics"][metric]
                error = [[found["median"] - found["low"]], [found["high"] - found["median"]]]
                axes.bar(at, found["median"], width, color=colour, yerr=error, ecolor="#555555")
                label = f"{found['median']:.3g}" + (
                    f"\n{row['failed']} lost" if row["failed"] else ""
                )
                axes.annotate(label, (at, found["high"]), ha="center", va="bottom", fontsize=7)
            axes.bar(0, 0, color=colour, label=report["systems"][name]["title"])
        middle = 0.4 - width / 2
        axes.set_xticks([i + middle for i in range(len(places))])
        axes.set_xticklabels([f"{point}\n{delay} ms away" for point, delay in places])
        axes.set_ylabel(f"{metric} ({_unit(report, metric)})")
        _legend(axes)
        return _save(figure, path)


def curves(report: Report, metrics: Sequence[str], path: Path, label: str) -> Path:
    """Each metric over the points' x: a line with quartiles for each system."""
    with pyplot.rc_context(SETTINGS):
        figure, all_axes = pyplot.subplots(
            1, len(metrics), figsize=(4 * len(metrics), 3), squeeze=False
        )
        for axes, metric in zip(all_axes[0], metrics, strict=True):
            for name, colour in colours(report).items():
                rows = sorted(
                    (r for r in report["rows"] if r["system"] == name and metric in r["metrics"]),
                    key=lambda row: row["x"],
                )
                found = [row["metrics"][metric] for row in rows]
                x = [row["x"] for row in rows]
                axes.plot(x, [f["median"] for f in found], "o-", color=colour, markersize=3,
                          label=report["systems"][name]["title"])  # fmt: skip
                axes.fill_between(
                    x, [f["low"] for f in found], [f["high"] for f in found],
                    color=colour, alpha=0.2, linewidth=0,
                )  # fmt: skip
            axes.set_xlabel(label)
            axes.set_ylabel(f"{metric} ({_unit(report, metric)})")
            axes.set_ylim(bottom=0)
        _legend(all_axes[0][0])
        return _save(figure, path)


def timeline(report: Report, path: Path) -> Path:
    """The calls of the first run of each system, a panel each, on one time axis."""
    calls = report["timeline"]
    rows = [max(1, len(found)) for found in calls.values()]
    with pyplot.rc_context(SETTINGS):
        figure, all_axes = pyplot.subplots(
            len(calls), 1, figsize=(7, min(12, 0.8 * len(calls) + 0.06 * sum(rows) + 0.8)),
            squeeze=False, sharex=True, gridspec_kw={"height_ratios": rows},
        )  # fmt: skip
        for axes, (name, found) in zip(all_axes[:, 0], calls.items(), strict=True):
            for row, call in enumerate(sorted(found, key=lambda call: call[0])):
                _draw_call(axes, row, call)
            axes.set_title(report["systems"][name]["title"], loc="left", fontsize=9)
            axes.set_yticks([])
            axes.invert_yaxis()
        all_axes[-1, 0].set_xlabel("seconds")
        for phase, colour in PHASES.items():
            title = "not told by the server" if phase == "call" else phase
            all_axes[0, 0].barh(0, 0, color=colour, label=title)
        _legend(all_axes[0, 0])
        return _save(figure, path)


def _draw_call(axes: Axes, row: int, call: Sequence[float | None]) -> None:
    """Draw `call`: its start, its seconds, and its seconds in queue and fill.

    The last two are None if the server reported nothing.
    """
    at, rest, queue, fill = call
    assert at is not None and rest is not None
    last = "call"
    if queue is not None and fill is not None:
        for phase, seconds in (("queue", queue), ("fill", fill)):
            axes.barh(row, seconds, left=at, color=PHASES[phase])
            at, rest = at + seconds, rest - seconds
        last = "generate"
    axes.barh(row, rest, left=at, color=PHASES[last])


def ablation(reports: Mapping[str, Report], path: Path) -> Path:
    """For each workload: weftline's time, with the time that each part saves stacked on it."""
    with pyplot.rc_context(SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7, 0.5 * len(reports) + 1.3))
        # Weftline is green; the parts that are left out take the other colours.
        seen = {"weftline": COLOURS[2]}
        free = [colour for colour in COLOURS if colour != COLOURS[2]]
        for row, report in enumerate(reports.values()):
            at = 0.0
            for name, value in losses(report).items():
                colour = seen.setdefault(name, free[(len(seen) - 1) % len(free)])
                axes.barh(row, value, left=at, color=colour)
                at += value
        axes.set_yticks(range(len(reports)))
        axes.set_yticklabels([report["title"] for report in reports.values()])
        axes.set_xlabel("time, as a multiple of weftline's")
        for name, colour in seen.items():
            axes.barh(0, 0, color=colour, label=name)
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        return _save(figure, path)


def losses(report: Report) -> dict[str, float]:
    """The time that each left-out part adds at the first point, in multiples of weftline's time."""
    first = report["rows"][0]
    metric = next(iter(first["metrics"]))
    found = {
        row["system"]: row["metrics"][metric]
        for row in report["rows"]
        if (row["point"], row["delay_ms"]) == (first["point"], first["delay_ms"])
        and metric in row["metrics"]
    }
    parts = {"weftline": 1.0}
    for name, measured in found.items():
        if name != "weftline" and "ratio" in measured:
            # Weftline is the baseline here, so the ratio is its time divided by this one's.
            title = report["systems"][name]["title"].removeprefix("weftline").lstrip(", ")
            parts[title] = max(0.0, 1 / measured["ratio"]["median"] - 1)
    return parts


def _unit(report: Report, metric: str) -> str:
    return next(str(r["metrics"][metric]["unit"]) for r in report["rows"] if metric in r["metrics"])


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=7, loc="best")
