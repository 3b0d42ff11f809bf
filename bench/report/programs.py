"""The page's tables of the programs of bench/micro and bench/gpu."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.report.tables import NOTHING, Report, kind, spread, table


def server(report: Report) -> str:
    """The cost of the server itself, and the gain from admission and retention: three tables."""
    placing, adding = report["place_ms_by_queue"], report["add_call_us_by_session"]
    lengths = list(next(iter(placing.values())))
    curves = [_curve(f"placed, {name}", placing[name], "ms") for name in placing]
    curves += [_curve(f"added {name}", adding[name], "µs") for name in adding]
    agents = report["agents"]
    return "\n\n".join(
        (
            table(("calls", *(f"{int(length):,}" for length in lengths)), curves),
            table(
                ("sessions at once", "calls", "lost or wrong", "CPU per call", "calls a second"),
                (
                    (
                        f"{one['at_once']:,}",
                        f"{one['calls']:,}",
                        one["lost_or_wrong"],
                        f"{one['cpu_ms_per_call']:.2f} ms",
                        f"{one['calls_per_s']:,.0f}",
                    )
                    for one in report["whole_path"]
                ),
            ),
            table(
                (
                    f"{agents['agents']} agents",
                    "applications a minute",
                    "computed again",
                    "mean",
                    "slowest",
                ),
                (
                    (
                        way.replace("_", " "),
                        f"{agents[way]['applications_per_minute']:.1f}",
                        f"{agents[way]['recomputed_share']:.0%}",
                        f"{agents[way]['mean_s']:.1f} s",
                        f"{agents[way]['slowest_s']:.1f} s",
                    )
                    for way in ("ours", "lru", "lru_behind_best_semaphore")
                ),
            ),
        )
    )


def _curve(name: str, points: Mapping[str, Mapping[str, float]], unit: str) -> list[str]:
    return [name, *(f"{one['median']:.3g} {unit}" for one in points.values())]


def gpu(results: Path) -> str:
    """The newest numbers of each figure that `make gpu-figures` replayed, on any device."""
    newest: dict[int, Report] = {}
    for path in sorted(results.glob("*/gpu-figure-*.json")):
        report = json.loads(path.read_text())
        newest[report["figure"]] = report
    return "\n\n".join(
        f"Figure {figure}, {report['device']}, {report['date']}:\n\n{_figure(report)}"
        for figure, report in sorted(newest.items())
    )


def _figure(report: Report) -> str:
    ways = {"tree": "tree", "blocks_shared": "blocks", "off": "off"}
    found = []  # of each row: point, sharing, policy, and the numbers or why there are none
    for row in report["rows"]:
        if "point" in row:
            measured = row if "mean_latency_s" in row else row["left_out"]
            found.append((row["point"], row["sharing"], row["policy"], measured))
            continue
        point = f"batch {row['batch']}, up to {row['most_output']} tokens"
        point += "" if row["counts"] else ", below 80 % of its roof"
        found += [(point, name, NOTHING, row[mode]) for mode, name in ways.items()]
    return table(
        ("point", "sharing", "policy", "mean latency", "ms a token"),
        ((*where, *_latency(measured)) for *where, measured in found),
    )


def _latency(measured: Any) -> tuple[str, str]:
    if isinstance(measured, str):
        return measured, NOTHING
    return f"{measured['mean_latency_s']:.2f} s", f"{measured['ms_a_token']:.1f}"


def rag_graph(results: Path) -> str:
    """Teola's applications, of the newest run on each kind of machine; empty without one."""
    paths = sorted([*results.glob("*/rag_graph.json"), *results.glob("*/rag_graph-quick.json")])
    reports = [json.loads(path.read_text()) for path in paths]
    header = ("application", "rate", "delay", "load", "system", "tasks", "seconds", "ratio")
    return "\n\n".join(
        f"On {on}, weftline at {report['machine']['commit']}:\n\n"
        f"{table((*header, 'bound'), _graphs(report))}"
        for on, report in {kind(report): report for report in reports}.items()
    )


def _graphs(report: Report) -> Iterator[tuple[object, ...]]:
    for row in report["rows"]:
        where = (row["app"], row["rate"], f"{row['delay_ms']} ms", row.get("load", NOTHING))
        for name in dict.fromkeys((row["base"], *row["systems"])):
            one = row["systems"][name]
            share = f"{one['of_bound']['median']:.0%}" if "of_bound" in one else NOTHING
            took = one["seconds"]
            ratio = f"{one['times_faster']['median']:.2f}"
            yield *where, name, took["n"], spread(took, " s"), ratio, share
