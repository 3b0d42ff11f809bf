"""The overview of a run in one JSON file, and the tables of the documentation that are made of it.

A file has the first point of each workload at each round trip, on every system. The newest file of
each kind of machine gives a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.results import RESULTS, write
from bench.harness.systems import BASELINE, OURS, SERVER_ONLY
from bench.harness.texts import ROOT
from bench.harness.workload import load
from bench.report.tables import NOTHING, Report, kind, number, spread, table
from weftline.errors import InvalidRequest

NAME = "overview"
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
WORKLOADS = "benchmarks/workloads.md"  # beside the page: what each workload is
# What all reports of one run have alike.
ALIKE = ("machine", "scale", "model", "dtype", "vllm_dtype", "vllm_probe_ms")
# The README shows the first rows: a chain, a list of parts that are joined, and retrieval.
README_ROWS = 6
ORDER = (
    "chain_summary",
    "map_reduce",
    "rag",
    "many_chains",
    "chain_background",
    "many_agents",
    "tool_mix",
    "agent_loop",
    "multi_agent",
    "copilot",
    "gpts",
    "mixed",
    "independent_chat",
)
HEADER = (
    "workload",
    "round trip",
    "LangChain on vLLM",
    "weftline on the same vLLM",
    "ratio",
    "weftline",
    "ratio",
)
# The reader of a ratio must know that the processor causes a part of it.
SLOW = (
    ", which torch multiplies more slowly than float32 on this processor, while weftline's decoder "
    "keeps bfloat16 weights and computes in float32: this is a part of every ratio over vLLM"
)


def write_overview(folder: Path) -> Path:
    """Write the file of a folder of summaries, and return its path. Raises InvalidRequest without
    summaries."""
    found = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    reports = [one for one in found if "workload" in one]
    if not reports:
        raise InvalidRequest(f"there are no summaries in {folder}: run `weftline bench all` first")
    first = reports[0]
    overview: dict[str, Any] = {"date": first["date"], **{name: first[name] for name in ALIKE}}
    commits = dict.fromkeys(report["machine"]["commit"] for report in reports)
    overview["machine"] = {**first["machine"], "commit": ", ".join(commits)}
    overview["systems"] = {
        name: about["title"] for one in reports for name, about in one["systems"].items()
    }
    overview["rows"] = [row for report in reports for row in _rows(report)]
    return write(folder, NAME, overview)


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """A row for each round trip of the first point. A system that lost calls is left out."""
    metric = next(iter(load(report["workload"]).metrics))
    first = report["rows"][0]["point"]
    found: dict[int, dict[str, Any]] = {}
    for row in report["rows"]:
        if row["point"] != first or row["failed"] or metric not in row["metrics"]:
            continue
        measured = row["metrics"][metric]
        place = found.setdefault(row["delay_ms"], {"unit": measured["unit"], "systems": {}})
        ratio = measured.get("ratio")
        place["systems"][row["system"]] = {"median": measured["median"], "ratio": ratio}
        if "bound" in row:
            place["bound"] = row["bound"]
    for delay, place in found.items():
        where = {"workload": report["workload"], "delay_ms": delay, "repeats": report["repeats"]}
        yield {**where, **place}


def write_tables(results: Path = RESULTS, page: Path = PAGE, readme: Path = README) -> None:
    """Write the tables between the marks of the page and of the README. Raises InvalidRequest
    without an overview."""
    newest = {kind(one): one for one in _overviews(results)}
    if not newest:
        raise InvalidRequest(f"there is no {NAME}.json in {results}: give the folder of a run")
    first, *others = sorted(newest.values(), key=_place, reverse=True)
    _between_marks(page, "\n\n".join(section(one, WORKLOADS) for one in (first, *others)))
    _between_marks(readme, section(first, f"docs/{WORKLOADS}", README_ROWS))


def _place(report: Report) -> tuple[bool, str]:
    """The order of machines: those that multiply bfloat16 are larger, and so are newer ones."""
    machine = report["machine"]
    return bool(machine.get("gpus") or machine["bf16_instructions"]), str(report["date"])


def _overviews(results: Path) -> list[Report]:
    """All overviews, the oldest first."""
    found = [json.loads(path.read_text()) for path in results.rglob(f"{NAME}.json")]
    return sorted(found, key=lambda one: str(one["date"]))


def _between_marks(path: Path, text: str) -> None:
    before, mark, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark and end, f"{path} has no marks for the table"
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def section(report: Report, workloads: str, most: int | None = None) -> str:
    """The table, or its first rows, below a paragraph on the machine. Workloads link to a page."""
    rows = sorted(report["rows"], key=lambda row: (ORDER.index(row["workload"]), row["delay_ms"]))
    cells = [_cells(row, workloads) for row in rows[:most]]
    repeats = max(row["repeats"] for row in rows)
    taken = f"Medians of {repeats} repetitions" if repeats > 1 else "One run"
    doubt = "" if repeats > 1 else ", so a ratio near 1 says nothing"
    return (
        f"{about(report)} {taken} of each workload's first point{doubt}.\n\n{table(HEADER, cells)}"
    )


def _cells(row: Report, workloads: str) -> Sequence[str]:
    found, title = row["systems"], load(row["workload"]).title
    inside, in_front = SERVER_ONLY
    same = inside if inside in found else in_front
    note = " (in front)" if same in found and same == in_front else ""
    return (
        f"[{title}]({workloads}#{anchor(title)})",
        f"{row['delay_ms']} ms",
        _median(found, BASELINE, row["unit"]),
        _median(found, same, row["unit"]) + note,
        _ratio(found, same) + (f", bound {row['bound']:.2f}" if "bound" in row else ""),
        _median(found, OURS, row["unit"]),
        _ratio(found, OURS),
    )


def _median(found: Mapping[str, Any], system: str, unit: str) -> str:
    return number({**found[system], "unit": unit}) if system in found else NOTHING


def _ratio(found: Mapping[str, Any], system: str) -> str:
    if system not in found or not found[system]["ratio"]:
        return NOTHING
    median, _, quartiles = spread(found[system]["ratio"]).partition(" ")
    return f"**{median}** {quartiles}".rstrip()


def about(report: Report) -> str:
    """A paragraph on the machine, the versions and the sizes."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"**{kind(report)}**, {machine['cores']} cores, {machine['memory_gib']} GiB. "
        f"Model: {dtypes(report)}. Versions: Python {machine['python']}, {versions}. Weftline "
        f"is at {machine['commit']}, {str(report['date'])[:10]}. Sizes: the paper's lengths times "
        f"{report['scale']['length']:g}, its counts times {report['scale']['count']:g}."
    )


def dtypes(report: Report) -> str:
    """The model, weftline's dtype, and vLLM's dtype with the reason for it."""
    if report["model"] is None:
        return "the null engine"
    dtype, probed = report.get("vllm_dtype", report["dtype"]), report.get("vllm_probe_ms")
    said = f"{report['model']} in {report['dtype']}, vLLM in {dtype}"
    if probed:
        slower = max(probed.values()) / probed[dtype]
        said += f", the faster one for it here ({slower:.1f} times, by a probe of its torch)"
    elif dtype == "bfloat16" and not report["machine"]["bf16_instructions"]:
        said += SLOW
    return said


def anchor(title: str) -> str:
    """The anchor that Markdown gives a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
