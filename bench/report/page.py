"""Writes docs/benchmarks.md from its template page.md: tables and pictures of each workload."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.systems import SERVER_ONLY
from bench.harness.texts import ROOT
from bench.harness.workload import SCALES, Workload, load, names
from bench.report import charts, programs, systems
from bench.report.tables import NOTHING, Report, kind, number, spread, table, times
from weftline.errors import InvalidRequest

DOCS = ROOT / "docs"
TEMPLATE = Path(__file__).with_name("page.md")
PICTURES = "benchmarks"
ORDER = (
    "chain_summary",
    "chain_background",
    "many_chains",
    "map_reduce",
    "copilot",
    "gpts",
    "multi_agent",
    "mixed",
    "many_agents",
    "tool_mix",
    "agent_loop",
    "rag",
    "independent_chat",
)
# What the README shows: a chain, a list of parts that are joined, and retrieval.
README_ROWS = ("chain_summary", "map_reduce", "rag")
CURVES = {  # by workload: the label of the axis
    "gpts": "requests a second",
    "chain_background": "background, share of the baseline's saturation",
    "many_chains": "applications at once",
    "independent_chat": "chats at once",
    "copilot": "users",
}
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
# The reader of a ratio must know that the processor causes a part of it.
SLOW = (
    ", which torch multiplies more slowly than float32 on this processor, while weftline's decoder "
    "keeps bfloat16 weights and computes in float32: this is a part of every ratio over vLLM"
)
PLACE = ("point", "delay_ms", "cache")  # of a row


def write_page(results: Path, docs: Path = DOCS) -> Path:
    """Write the page and its pictures; return the page's path.

    `results` holds folders DATE-MACHINE, and the newest counts; or it is such a folder. The
    sections of bench/micro take the newest results of the same machine.
    """
    folder, reports = find(results)
    all_results = folder.parent
    others = [*other_sizes(folder), *other_machines(folder), *all_systems(all_results)]
    measured = [name for name in ORDER if name in reports]
    text = TEMPLATE.read_text().format(
        folder=f"bench/results/{folder.name}",
        machine=about(next(iter(reports.values()))),
        same_engine=same_engine(reports),
        headline=headline(reports),
        others="\n\n".join(others),
        repeated=_repeated(reports),
        workloads="\n\n".join(section(name, reports[name], docs) for name in measured),
        ablation=_ablation(reports, docs),
        exact=exact({n: reports[f"{n}-exact"] for n in ORDER if f"{n}-exact" in reports}),
        server=_server(folder),
        rag_graph=programs.rag_graph(all_results),
        gpu=programs.gpu(all_results) or "No GPU was available for these results.",
        missing=", ".join(f"`{name}`" for name in names() if name not in reports) or "none",
    )
    page = docs / "benchmarks.md"
    page.write_text(re.sub(r"\n{3,}", "\n\n", text))
    return page


def _server(folder: Path) -> str:
    """The tables of `make bench-server`, by its newest file."""
    found = newest(folder, "server.json")
    return programs.server(json.loads(found[0].read_text())) if found else table((), ())


def newest(folder: Path, name: str) -> list[Path]:
    """The file of this name in `folder`, or else the newest one of the same machine, if any."""
    of_machine = sorted(folder.parent.glob(f"*{folder.name[10:]}/{name}"))
    return [folder / name] if (folder / name).exists() else of_machine[-1:]


def write_headline(results: Path, readme: Path = ROOT / "README.md") -> bool:
    """Write the table of the newest results between the README's marks; False without marks."""
    text = readme.read_text()
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        return False
    _, reports = find(results)
    shown = {name: reports[name] for name in README_ROWS if name in reports}
    rows = headline(shown or reports).replace("](#", "](docs/benchmarks.md#")
    first = next(iter(reports.values()))
    ran = f"{first['machine']['cpu']}, {first['machine']['cores']} cores; {dtypes(first)}:"
    readme.write_text("\n".join([before + BEGIN, ran, "", rows, END + after]))
    return True


def find(results: Path) -> tuple[Path, dict[str, Report]]:
    """The newest folder that has summaries of workloads, and these by name.

    Raises InvalidRequest if there are none.
    """
    for folder in (results, *sorted(results.glob("*/"), reverse=True)):
        if reports := _summaries(folder):
            return folder, reports
    raise InvalidRequest(f"there are no results in {results}: run `weftline bench all` first")


def _summaries(folder: Path) -> dict[str, Report]:
    """The summaries of workloads in a folder, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: report for name, report in found.items() if "workload" in report}


def about(report: Report) -> str:
    """A paragraph on the machine, the versions and the sizes."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{kind(report)}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"{dtypes(report)}; Python {machine['python']}, {versions}; weftline at "
        f"{machine['commit']}. Sizes: the paper's lengths times {report['scale']['length']:g}, its "
        f"counts times {report['scale']['count']:g}."
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


def ours(report: Report) -> str:
    """The system that the page judges: weftline as it is usual, wherever it ran."""
    return "weftline" if "weftline" in report["systems"] else list(report["systems"])[-1]


def _first_rows(report: Report, *chosen: str) -> list[Report]:
    """For each round trip of the first point the row of the first of these systems that has one."""
    first = report["rows"][0]["point"]
    found: dict[int, Report] = {}
    for system in chosen:
        for row in report["rows"]:
            if (row["point"], row["system"], row["cache"]) == (first, system, "cold"):
                found.setdefault(row["delay_ms"], row)
    return [found[delay] for delay in sorted(found)]


def _compared(
    reports: Mapping[str, Report], *chosen: str
) -> Iterator[tuple[Workload, Report, str, str, str]]:
    """For each workload and round trip: the workload and the row, the baseline's headline metric,
    the row's, and their ratio."""
    for name in (name for name in ORDER if name in reports):
        report, workload = reports[name], load(name)
        metric = next(iter(workload.metrics))
        for row in _first_rows(report, *(chosen or (ours(report),))):
            found, base = row["metrics"].get(metric), _base(report, row)["metrics"].get(metric)
            if found is not None and base is not None and "ratio" in found:
                yield workload, row, number(base), number(found), _bold(found["ratio"])


def _bold(ratio: Mapping[str, Any]) -> str:
    median, _, quartiles = spread(ratio).partition(" ")
    return f"**{median}** {quartiles}".rstrip()


def same_engine(reports: Mapping[str, Report]) -> str:
    """What the server earns alone: our server and the baseline's client on the same vLLM, with our
    scheduler inside where that was measured, else in front of it."""
    return table(
        ("workload", "round trip", "LangChain on vLLM", "weftline on vLLM", "scheduler", "ratio"),
        (
            (
                f"[{workload.title}](#{anchor(workload.title)})",
                f"{row['delay_ms']} ms",
                base,
                found,
                "inside" if row["system"] == SERVER_ONLY[0] else "in front",
                ratio,
            )
            for workload, row, base, found, ratio in _compared(reports, *SERVER_ONLY)
        ),
    )


def headline(reports: Mapping[str, Report]) -> str:
    """A table of the first point of each workload at each round trip: the baseline and weftline."""
    return table(
        ("workload", "figure", "round trip", "baseline", "weftline", "ratio"),
        (
            (
                f"[{workload.title}](#{anchor(workload.title)})",
                workload.figure,
                f"{row['delay_ms']} ms",
                base,
                found,
                ratio,
            )
            for workload, row, base, found, ratio in _compared(reports)
        ),
    )


def other_sizes(folder: Path) -> Iterator[str]:
    """A section for each other size that was measured, in a folder with the name of its scale."""
    for path in (folder / scale for scale in SCALES if (folder / scale).is_dir()):
        reports = _summaries(path)
        first = next(iter(reports.values()))
        commits = dict.fromkeys(report["machine"]["commit"] for report in reports.values())
        repeats = max(report["repeats"] for report in reports.values())
        yield (
            f"## At the sizes of `--scale {path.name}`\n\n"
            f"The sizes are the paper's lengths times {first['scale']['length']:g} and its "
            f"counts times {first['scale']['count']:g}. Weftline is at {', '.join(commits)}, "
            f"with {times(repeats)} of each workload's first point.\n\n{headline(reports)}"
        )


def other_machines(folder: Path) -> Iterator[str]:
    """A section for each size that was measured in another folder, with all rows."""
    for path in sorted(path for scale in SCALES for path in folder.parent.glob(f"*/{scale}")):
        if path.parent == folder:
            continue
        reports = _summaries(path)
        first = next(iter(reports.values()))
        tables = [
            f"{load(name).title}, {times(reports[name]['repeats'])}:\n\n"
            f"{_table(reports[name], load(name))}"
            for name in ORDER
            if name in reports
        ]
        title = f"## At the sizes of `--scale {path.name}`, on {kind(first)}"
        yield "\n\n".join((title, about(first), same_engine(reports), *tables))


def all_systems(results: Path) -> Iterator[str]:
    """A section for each run of which one table was kept."""
    for path in sorted(results.glob(f"*/*{systems.SUFFIX}.json")):
        report = json.loads(path.read_text())
        yield systems.section(report, about(report))


def _base(report: Report, row: Report) -> Report:
    base = next(iter(report["systems"]))
    found: Report = next(
        other
        for other in report["rows"]
        if other["system"] == base and all(other[key] == row[key] for key in PLACE)
    )
    return found


def section(name: str, report: Report, docs: Path) -> str:
    """A workload's title, pictures, table, and the paper's result."""
    workload = load(name)
    pictures = (
        f"![{caption}]({path.relative_to(docs)})" for caption, path in _draw(name, report, docs)
    )
    parts = [
        f"## {workload.title}",
        *(["**Partial: the run was interrupted.**"] if report["partial"] else []),
        "\n".join(pictures),
        _table(report, workload),
        f"The paper ({workload.figure}): {workload.paper}. Why it differs: {workload.difference}",
    ]
    return "\n\n".join(parts)


def _table(report: Report, workload: Workload) -> str:
    """All rows of a report: each point on each system, with the ratio of the headline's metric."""
    metric = next(iter(workload.metrics))
    titles = {system: about["title"] for system, about in report["systems"].items()}

    def cells(row: Report) -> Iterator[str]:
        yield f"{row['point']}{'' if row['cache'] == 'cold' else ', warm'}"
        yield f"{row['delay_ms']} ms"
        yield titles[row["system"]]
        for name in workload.metrics:
            yield number(row["metrics"][name]) if name in row["metrics"] else NOTHING
        ratio = row["metrics"].get(metric, {}).get("ratio")
        yield spread(ratio) if ratio else NOTHING
        # The share of the prompts' tokens that were in the KV cache, where the server tells it.
        share = row.get("cached_share", row.get("cached"))
        yield NOTHING if share is None else f"{share:.0%}"
        yield str(row["failed"] or NOTHING)

    header = ("point", "round trip", "system", *workload.metrics, "ratio", "cached", "lost")
    return table(header, (tuple(cells(row)) for row in report["rows"]))


def _draw(name: str, report: Report, docs: Path) -> Iterator[tuple[str, Path]]:
    """Draw the pictures of a workload; their captions and paths."""
    folder, title = docs / PICTURES, report["title"]
    metrics = list(report["rows"][0]["metrics"])
    yield f"{title}: {metrics[0]}", charts.bars(report, metrics[0], folder / f"{name}.svg")
    points = {row["x"] for row in report["rows"]}
    if name in CURVES and len(points) > 2:
        path = folder / f"{name}-curve.svg"
        yield f"{title} over the load", charts.curves(report, metrics[:2], path, CURVES[name])
    path = folder / f"{name}-timeline.svg"
    yield f"{title}: where the time went", charts.timeline(report, path)


def _repeated(reports: Mapping[str, Report]) -> str:
    """The shares of repeated tokens, Table 1 of the paper."""
    return table(
        ("workload", "repeated"),
        (
            (report["title"], f"{report['repeated_tokens']:.0%}")
            for name in ORDER
            if (report := reports.get(name)) and report.get("repeated_tokens") is not None
        ),
    )


def exact(reports: Mapping[str, Report]) -> str:
    """How many applications gave the same answer in each way."""

    def rows() -> Iterator[tuple[str, str, str]]:
        for report in reports.values():
            for way in list(report["systems"])[1:]:
                found = [row for row in report["rows"] if row["system"] == way]
                same, apps = (
                    sum(row[key] for row in found) for key in ("same_answers", "compared")
                )
                yield report["title"], report["systems"][way]["title"], f"{same} of {apps}"

    return table(("workload", "way", "the same"), rows())


def _ablation(reports: Mapping[str, Report], docs: Path) -> str:
    found = {name: reports[f"{name}-ablation"] for name in ORDER if f"{name}-ablation" in reports}
    if not found:
        return table((), ())
    path = charts.ablation(found, docs / PICTURES / "ablation.svg")
    return f"![Ablation]({path.relative_to(docs)})"


def anchor(title: str) -> str:
    """The anchor that Markdown gives a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
