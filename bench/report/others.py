"""Sections of the report that are not of the harness: the simulator, LlamaIndex, the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]


def simulation(report: Report) -> list[str]:
    """How well the simulator foretells what was measured, and what it says of many engines."""
    cost = {name: f"{value / 1000:.3g} ms" for name, value in report["cost_us"].items()}
    attend_us = report["cost_us"]["attend_s"]
    fitted = report["calibrated_on"]
    lines = [
        *("## Many engines, simulated", ""),
        "`weftline bench simulate` runs the server's own sessions, passes and policy, and the",
        "embedded engine's scheduler, on engines whose steps take a given time: "
        f"{cost['step_s']} each,",
        f"{cost['fill_s']} for a prompt token, {attend_us:.3g} µs for each token that one attends",
        f"to and {cost['sequence_s']} for a sequence that decodes, fitted to `{fitted}`. All its",
        "prompts are short, so what attention has of a prompt token's cost is a share that the",
        "engine was once timed at. The other workloads were not fitted to; the mean error of their",
        f"mean completion is {report['mean_error']:.0%}.",
        "",
        "| workload | point | round trip | measured | simulated | error |",
        "|---|---|---|---|---|---|",
    ]
    for one in report["foretold"]:
        note = ", fitted" if one["workload"] == fitted else ""
        lines.append(
            f"| {one['workload']}{note} | {one['point']} | {one.get('delay_ms', 0)} ms "
            f"| {one['measured_s']:.2f} s | {one['simulated_s']:.2f} s | {one['error']:+.0%} |"
        )
    if report["sizes"]:
        lines += _sizes(report)
    return [*lines, ""]


def _sizes(report: Report) -> list[str]:
    lines = [
        "",
        "Chains, map-reduce summaries, users of sixteen copilots and chats, arriving at random at",
        "the same rate for each engine:",
        "",
        "| engines | policy | calls | mean completion | p90 | prompts cached | engines busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in report["sizes"]:
        lines.append(
            f"| {one['engines']} | {one['policy']} | {one['calls']} | {one['mean_s']:.2f} s "
            f"| {one['p90_s']:.2f} s | {one['cached']:.0%} | {one['busy']:.0%} |"
        )
    return lines


def llamaindex(report: Report) -> list[str]:
    """`weftline bench llamaindex`: a query engine's synthesizers over a plain OpenAI-like LLM."""
    lines = [
        *("## LlamaIndex query engines", ""),
        "`make bench-llamaindex`, one weftline server: the seconds of a synthesis with the",
        "OpenAI-like LLM of LlamaIndex, with the swapped class, and with WeftlineSynthesizer.",
        "",
        "| synthesizer | round trip | LLM | seconds | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        for name, found in row["systems"].items():
            ratio = found["times_faster"]["median"]
            lines.append(
                f"| {row['case']} | {row['delay_ms']} ms | {name} "
                f"| {found['seconds']['median']:.3g} s | {ratio:.2f} |"
            )
    return [*lines, ""]


def server(report: Report) -> list[str]:
    """`make bench-server`: what the server costs, and what admission and retention earn."""
    placing, adding = report["place_ms_by_queue"], report["add_call_us_by_session"]
    lengths = list(next(iter(placing.values())))
    agents, ways = report["agents"], ("ours", "lru", "lru_behind_best_semaphore")
    lines = [
        *("## The server by itself", ""),
        "`make bench-server`: a round of placements over 16 engines by the length of the queue,",
        "for calls that share beginnings, that share none, and on engines without room; and adding",
        "one call to a session of so many.",
        "",
        f"| calls | {' | '.join(f'{int(length):,}' for length in lengths)} |",
        "|---" * (1 + len(lengths)) + "|",
        *(_curve(f"placed, {name}", placing[name], "ms") for name in placing),
        *(_curve(f"added {name}", adding[name], "µs") for name in adding),
        "",
        "| sessions at once | calls | lost or wrong | CPU per call | calls a second |",
        "|---|---|---|---|---|",
        *(
            f"| {one['at_once']:,} | {one['calls']:,} | {one['lost_or_wrong']} "
            f"| {one['cpu_ms_per_call']:.2f} ms | {one['calls_per_s']:,.0f} |"
            for one in report["whole_path"]
        ),
        "",
        f"{agents['agents']} agents of eight turns on a cache for a third of them, in simulated",
        f"time; the best of the client's semaphores lets {agents['best_semaphore']} in.",
        "",
        "| | applications a minute | computed again | mean | slowest |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        one = agents[way]
        lines.append(
            f"| {way.replace('_', ' ')} | {one['applications_per_minute']:.1f} "
            f"| {one['recomputed_share']:.0%} | {one['mean_s']:.1f} s | {one['slowest_s']:.1f} s |"
        )
    return [*lines, ""]


def _curve(name: str, points: Mapping[str, Mapping[str, float]], unit: str) -> str:
    cells = (f"{one['median']:.3g} {unit}" for one in points.values())
    return f"| {name} | {' | '.join(cells)} |"


def gpu(results: Path) -> list[str]:
    """`make gpu-figures`: the newest numbers of each figure of the paper, on whatever device."""
    newest: dict[int, Report] = {}
    for path in sorted(results.glob("*/gpu-figure-*.json")):
        report = json.loads(path.read_text())
        newest[report["figure"]] = report
    lines = [
        *("## On a GPU", ""),
        "`make gpu-figures FIG=n` replays figure 11, 14, 15, 16, 17 or 18 on one device, with a",
        "dummy LLaMA on the embedded engine: the keys and values of a common beginning shared in",
        "attention (tree), in memory alone (pages), or not at all (off); graphs of whole",
        "applications (app), or calls by themselves from a client 250 ms away (request).",
        "",
    ]
    if not newest:
        return [*lines, "No GPU was to be had for these results.", ""]
    for figure, report in sorted(newest.items()):
        lines += [f"Figure {figure}, {report['device']}, {report['date']}:", "", *_figure(report)]
    return lines


def _figure(report: Report) -> list[str]:
    ways = {"tree": "tree", "pages_shared": "pages", "off": "off"}
    found = []  # point, sharing, policy, what was measured or why it was not
    for row in report["rows"]:
        if "point" in row:
            measured = row if "mean_latency_s" in row else row["left_out"]
            found.append((row["point"], row["sharing"], row["policy"], measured))
            continue
        point = f"batch {row['batch']}, up to {row['most_output']} tokens"
        point += "" if row["counts"] else ", below 80 % of its roof"
        found += [(point, name, "–", row[mode]) for mode, name in ways.items()]
    lines = ["| point | sharing | policy | mean latency | ms a token |", "|---|---|---|---|---|"]
    for point, sharing, policy, measured in found:
        cells = f"{measured} | –"
        if not isinstance(measured, str):
            cells = f"{measured['mean_latency_s']:.2f} s | {measured['ms_a_token']:.1f}"
        lines.append(f"| {point} | {sharing} | {policy} | {cells} |")
    return [*lines, ""]


# By the name of their file.
SECTIONS = {"simulation": simulation, "llamaindex": llamaindex, "server": server}
