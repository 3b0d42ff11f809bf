"""Writes docs/benchmarks.md: the pictures and numbers of each workload, beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.systems import SERVER_ONLY
from bench.harness.texts import ROOT
from bench.harness.workload import SCALES, Workload, load, names
from bench.report import charts, others, systems, verdicts
from weftline.errors import InvalidRequest

Report = Mapping[str, Any]

DOCS = ROOT / "docs"
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
DISTRIBUTIONS = ("gpts", "mixed", "many_agents", "chain_background", "copilot")
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
# The reader of a ratio must know that the processor causes a part of it.
SLOW = (
    ", which torch multiplies more slowly than float32 on this processor, while weftline's decoder "
    "keeps bfloat16 weights and computes in float32: this is a part of every ratio over vLLM"
)
INTRODUCTION = """# Benchmarks

`weftline bench report` writes this page from {folder}; do not edit it.

## How it is measured

`weftline bench all` measures all workloads, after `make install` and `make install-bench`. On two
cores it takes about half a day, most of it for the agents, and it prints how much is left. With
`--quick` it runs small sizes and takes ten minutes. On a CPU with AVX2 only, six systems take 44
minutes, seven of which vLLM needs to start. `--repeat N` sets the repetitions of each
point. `--within S` stops after the last complete turn that fits in S seconds, with exit code 3 if
something is left. `--resume` keeps the runs of the same code, machine and settings. Both together
measure in parts:

    while weftline bench all --resume --within 540; [ $? -eq 3 ]; do :; done

Each workload writes two files. Its raw runs go to the folder raw/ of the results, which git
ignores. A summary goes beside that folder and is committed: medians, quartiles, counts, and what
the pictures show. `--resume` needs the raw runs. `weftline bench summarise` makes the summaries
from them again. `weftline bench table --folder FOLDER` writes the first points of all summaries of
a folder to one file. It is committed in their place where a run has many systems.

Servers and client run on all cores, or on those of `--cores` and `--client-cores`. The results name
them.

Every workload is one LangChain or LlamaIndex program (bench/workloads/). It runs in turns on each
system, with the same machine, weights, texts and lengths. Sampling is greedy, and every answer has
a fixed length. A ratio compares two systems in the same repetition. The tables show medians with
quartiles. Each repetition has new texts, so a cache holds only what a workload shares within
itself. A proxy between client and server makes a round trip longer, with a jitter of 20 % to either
side, the same for all systems. A run begins when the servers of the other systems are at rest.

Every application of every run has texts of its own, so the texts are always more than three times
those in flight, and no text comes back from an earlier run. A table's column "cached" is the share
of the prompts' tokens that were in the KV cache, where the server tells it. vLLM tells it since
`--enable-prompt-tokens-details` was added, so older rows of it have none. `asyncio-vllm` is the
program written by hand on plain endpoints, and `langchain-vllm-ngram` is LangChain on a vLLM that
drafts by n-grams. `weftline-vllm` stands in front of the baseline's vLLM, and
`weftline-vllm-plugin` starts its own, with our scheduler inside.

## Results

{machine}
"""


def write_page(results: Path, docs: Path = DOCS) -> Path:
    """Write the page and its pictures; return the page's path.

    `results` holds folders DATE-MACHINE, and the newest counts; or it is such a folder. The
    sections of bench/micro take the newest results of the same machine.
    """
    folder, reports = find(results)
    first = next(iter(reports.values()))
    lines = [
        INTRODUCTION.format(folder=f"bench/results/{folder.name}", machine=about(first)),
        *same_engine(reports),
        "### Server and engine together",
        "",
        *headline(reports),
        *other_sizes(folder),
        *other_machines(folder),
        *all_systems(folder.parent),
        *_repeated(reports),
    ]
    for name in ORDER:
        if name in reports:
            lines += section(name, reports[name], docs)
    ablations = {
        name: reports[f"{name}-ablation"] for name in ORDER if f"{name}-ablation" in reports
    }
    if ablations:
        lines += _ablation(ablations, docs)
    lines += exact({n: reports[f"{n}-exact"] for n in ORDER if f"{n}-exact" in reports})
    for name, write in others.SECTIONS.items():
        for path in newest(folder, f"{name}.json"):
            lines += write(json.loads(path.read_text()))
    lines += others.rag_graph(folder.parent)
    lines += others.rag_parts()
    lines += others.tool_parts()
    lines += others.replay(folder.parent)
    lines += others.gpu(folder.parent)
    missing = [f"`{name}`" for name in names() if name not in reports]
    if missing:
        lines += ["## Not measured here", "", f"{', '.join(missing)}.", ""]
    page = docs / "benchmarks.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    return page


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
    table = [line.replace("](#", "](docs/benchmarks.md#") for line in headline(shown or reports)]
    first = next(iter(reports.values()))
    ran = f"{first['machine']['cpu']}, {first['machine']['cores']} cores; {dtypes(first)}:"
    readme.write_text("\n".join([before + BEGIN, ran, "", *table[:-1], END + after]))
    return True


def find(results: Path) -> tuple[Path, dict[str, Report]]:
    """The newest folder that has summaries of workloads, and these by name.

    Raises InvalidRequest if there are none.
    """
    for folder in (results, *sorted(results.glob("*/"), reverse=True)):
        found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
        reports = {name: report for name, report in found.items() if "workload" in report}
        if reports:
            return folder, reports
    raise InvalidRequest(f"there are no results in {results}: run `weftline bench all` first")


def about(report: Report) -> str:
    """A paragraph on the machine, the versions and the sizes."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{others.kind(report)}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
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


def same_engine(reports: Mapping[str, Report]) -> list[str]:
    """What the server earns alone: our server and the baseline's client on the same vLLM."""
    rows = []
    for name in (name for name in ORDER if name in reports):
        report, workload = reports[name], load(name)
        metric = next(iter(workload.metrics))
        for row in verdicts.same_engine_rows(report):
            found, base = row["metrics"].get(metric), _base(report, row)["metrics"].get(metric)
            if found is None or base is None or "ratio" not in found:
                continue
            inside = row["system"] == SERVER_ONLY[0]
            rows.append(
                f"| [{workload.title}](#{anchor(workload.title)}) | {row['delay_ms']} ms "
                f"| {number(base)} | {number(found)} | {'inside' if inside else 'in front'} "
                f"| {_ratio(found['ratio'])} |"
            )
    if not rows:
        return []
    return [
        "### What the server earns on the same engine",
        "",
        *others.paragraph(
            "LangChain on a vLLM, and weftline on the same vLLM: the same weights, kernels and "
            "cache. So the ratio is what the server earns, without our engine. Our scheduler runs "
            "inside vLLM, or the server stands in front of a vLLM with its own."
        ),
        "",
        "| workload | round trip | LangChain on vLLM | weftline on vLLM | scheduler | ratio |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def headline(reports: Mapping[str, Report]) -> list[str]:
    """A table of the first point of each workload at each round trip: the baseline and weftline."""
    lines = [
        "| workload | figure | round trip | baseline | weftline | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name in (name for name in ORDER if name in reports):
        report, workload = reports[name], load(name)
        metric = next(iter(workload.metrics))
        for row in verdicts.headline_rows(report):
            found, base = row["metrics"].get(metric), _base(report, row)["metrics"].get(metric)
            if found is None or base is None or "ratio" not in found:
                continue
            lines.append(
                f"| [{workload.title}](#{anchor(workload.title)}) | {workload.figure} "
                f"| {row['delay_ms']} ms | {number(base)} | {number(found)} "
                f"| {_ratio(found['ratio'])} |"
            )
    return [*lines, ""]


def other_sizes(folder: Path) -> list[str]:
    """A section for each other size that was measured, in a folder with the name of its scale."""
    lines = []
    for path in (folder / scale for scale in SCALES if (folder / scale).is_dir()):
        reports = {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
        first = next(iter(reports.values()))
        commits = dict.fromkeys(report["machine"]["commit"] for report in reports.values())
        repeats = max(report["repeats"] for report in reports.values())
        lines += [
            f"## At the sizes of `--scale {path.name}`",
            "",
            *others.paragraph(
                f"The sizes are the paper's lengths times {first['scale']['length']:g} and its "
                f"counts times {first['scale']['count']:g}. Weftline is at {', '.join(commits)}, "
                f"with {repeats} repetition{'s' if repeats > 1 else ''} of each workload's first "
                "point."
            ),
            "",
            *same_engine(reports),
            "### Server and engine together",
            "",
            *headline(reports),
        ]
        for name in (name for name in ORDER if name in reports):
            report = reports[name]
            said = [*verdicts.verdicts(load(name), report), *verdicts.elsewhere(report)]
            lines += [f"- {report['title']}: {' '.join(said)}"]
        lines += [""]
    return lines


def other_machines(folder: Path) -> list[str]:
    """A section for each size that was measured in another folder, with all rows."""
    lines = []
    for path in sorted(path for scale in SCALES for path in folder.parent.glob(f"*/{scale}")):
        if path.parent == folder:
            continue
        reports = {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
        first = next(iter(reports.values()))
        lines += [
            f"## At the sizes of `--scale {path.name}`, on {others.kind(first)}",
            "",
            about(first),
            "",
            *same_engine(reports),
        ]
        for name in (name for name in ORDER if name in reports):
            report, workload = reports[name], load(name)
            repeats = report["repeats"]
            said = " ".join(verdicts.verdicts(workload, report))
            lines += [
                f"{workload.title}, {repeats} repetition{'s' if repeats > 1 else ''}:",
                "",
                *_table(report, workload),
                "",
                *([said, ""] if said else []),
            ]
    return lines


def all_systems(results: Path) -> list[str]:
    """A section for each run of which one table was kept."""
    reports = map(
        json.loads, map(Path.read_text, sorted(results.glob(f"*/*{systems.SUFFIX}.json")))
    )
    return [line for one in reports for line in systems.section(one, about(one))]


def _base(report: Report, row: Report) -> Report:
    base = next(iter(report["systems"]))
    where = ("point", "delay_ms", "cache")
    found: Report = next(
        other
        for other in report["rows"]
        if other["system"] == base and all(other[key] == row[key] for key in where)
    )
    return found


def section(name: str, report: Report, docs: Path) -> list[str]:
    """A workload's title, pictures, table, and the paper's result."""
    workload = load(name)
    base = next(iter(report["systems"].values()))["title"]
    lines = [f"## {workload.title}", ""]
    if report["partial"]:
        lines += ["**Partial: the run was interrupted.**", ""]
    lines += [
        f"![{caption}]({path.relative_to(docs)})" for caption, path in _draw(name, report, docs)
    ]
    lines += ["", *_table(report, workload)]
    lines += ["", f"The paper ({workload.figure}): {workload.paper}. Here, over {base}:"]
    said = " ".join(verdicts.verdicts(workload, report))
    lines += [f"{said} Why it differs: {workload.difference}", ""]
    return lines


def _table(report: Report, workload: Workload) -> list[str]:
    """All rows of a report: each point on each system, with the ratio of the headline's metric."""
    metric = next(iter(workload.metrics))
    titles = {system: about["title"] for system, about in report["systems"].items()}
    lines = [
        f"| point | round trip | system | {' | '.join(workload.metrics)} | ratio | cached | lost |",
        "|" + "---|" * (6 + len(workload.metrics)),
    ]
    for row in report["rows"]:
        cells = [
            number(row["metrics"][m]) if m in row["metrics"] else "–" for m in workload.metrics
        ]
        ratio = row["metrics"].get(metric, {}).get("ratio")
        lines.append(
            f"| {row['point']}{'' if row['cache'] == 'cold' else ', warm'} | {row['delay_ms']} ms "
            f"| {titles[row['system']]} | {' | '.join(cells)} "
            f"| {_spread(ratio) if ratio else '–'} | {_hit_rate(row)} | {row['failed'] or '–'} |"
        )
    return lines


def _hit_rate(row: Report) -> str:
    """The share of the prompts' tokens that were in the KV cache, where the server tells it."""
    share = row.get("cached_share", row.get("cached"))
    return "–" if share is None else f"{share:.0%}"


def _draw(name: str, report: Report, docs: Path) -> Iterator[tuple[str, Path]]:
    """Draw the pictures of a workload; their captions and paths."""
    folder, title = docs / PICTURES, report["title"]
    metrics = list(report["rows"][0]["metrics"])
    yield f"{title}: {metrics[0]}", charts.bars(report, metrics[0], folder / f"{name}.svg")
    points = {row["x"] for row in report["rows"]}
    if name in CURVES and len(points) > 2:
        path = folder / f"{name}-curve.svg"
        yield f"{title} over the load", charts.curves(report, metrics[:2], path, CURVES[name])
    if name in DISTRIBUTIONS:
        path = folder / f"{name}-cdf.svg"
        yield f"{title}: distribution", charts.distribution(report, path)
    if "pairs" in report:
        path = folder / f"{name}-scatter.svg"
        yield f"{title}: application by application", charts.scatter(report, path)
    path = folder / f"{name}-timeline.svg"
    yield f"{title}: where the time went", charts.timeline(report, path)


def _repeated(reports: Mapping[str, Report]) -> list[str]:
    """The section on repeated tokens, Table 1 of the paper."""
    rows = [
        f"| {report['title']} | {report['repeated_tokens']:.0%} |"
        for name in ORDER
        if (report := reports.get(name)) and report.get("repeated_tokens") is not None
    ]
    return [
        "## Repeated tokens (Table 1)",
        "",
        *others.paragraph(
            "The share of tokens in paragraphs that occur in at least two prompts of one run. The "
            "paper has 3 % for documents, 94 % for chat search, 72 % for MetaGPT and 99 % for "
            "AutoGen."
        ),
        "",
        "| workload | repeated |",
        "|---|---|",
        *rows,
        "",
    ]


def exact(reports: Mapping[str, Report]) -> list[str]:
    """The section on equal answers: how many applications gave the same one in each way."""
    if not reports:
        return []
    lines = [
        "## The same answers",
        "",
        *others.paragraph(
            "All systems get the same texts and sample greedily in float32. The table counts the "
            "applications whose whole answer equals that of ChatOpenAI on weftline. Where the two "
            "best tokens are within 1e-3 of each other, another batch may pick the other one."
        ),
        "",
        "| workload | way | the same |",
        "|---|---|---|",
    ]
    for report in reports.values():
        ways = list(report["systems"])[1:]
        for way in ways:
            rows = [row for row in report["rows"] if row["system"] == way]
            same, apps = (sum(row[key] for row in rows) for key in ("same_answers", "compared"))
            title = report["systems"][way]["title"]
            lines.append(f"| {report['title']} | {title} | {same} of {apps} |")
    return [*lines, ""]


def _ablation(reports: Mapping[str, Report], docs: Path) -> list[str]:
    path = charts.ablation(reports, docs / PICTURES / "ablation.svg")
    return [
        "## What each part earns",
        "",
        *others.paragraph(
            "The time that weftline takes longer when one optimisation at a time is left out, and "
            "with the request policy, which knows nothing of applications."
        ),
        "",
        f"![Ablation]({path.relative_to(docs)})",
        "",
    ]


def anchor(title: str) -> str:
    """The anchor that Markdown gives a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def number(found: Mapping[str, Any]) -> str:
    """A median with its unit."""
    return f"{found['median']:.3g} {found['unit']}"


def _ratio(found: Mapping[str, Any]) -> str:
    """A median in bold type, with its quartiles if it is of several repetitions."""
    quartiles = f" ({found['low']:.2f} to {found['high']:.2f})" if found["n"] > 1 else ""
    return f"**{found['median']:.2f}**{quartiles}"


def _spread(found: Mapping[str, Any]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
