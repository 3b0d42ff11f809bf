"""The tables of docs/benchmarks.md and the README, for numbers given by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness import probe
from bench.harness.column import COLUMN
from bench.harness.results import RAW, RESULTS, write
from bench.harness.runs import Run
from bench.harness.stage import App
from bench.harness.workload import names
from bench.report import overview, pairs
from bench.report.tables import kind
from tests.committed import committed, linked
from weftline.errors import InvalidRequest

MOST_LINES = 5000  # of all summaries together
COMMITTED = [path for path in committed(RESULTS) if path.suffix == ".json"]
MACHINE = {
    "cpu": "a CPU",
    "cores": 2,
    "memory_gib": 8,
    "python": "3",
    "versions": {"torch": "2"},
    "bf16_instructions": True,
    "commit": "c1",
}
ALIKE: dict[str, Any] = {
    "machine": MACHINE,
    "scale": {"name": "quick", "length": 0.125, "count": 0.2},
    "model": "m",
    "dtype": "bfloat16",
    "vllm_dtype": "bfloat16",
    "vllm_probe_ms": None,
}


def test_the_table_says_in_which_type_vllm_ran() -> None:
    """The probe chose it, or it was given; the table warns if the processor is slow at it."""
    machine = {"bf16_instructions": False}
    report = {"model": "m", "dtype": "bfloat16", "machine": machine}
    probed = {"vllm_dtype": "float32", "vllm_probe_ms": {"bfloat16": 18.0, "float32": 4.5}}
    assert probe.fastest(probed["vllm_probe_ms"]) == "float32"
    assert overview.dtypes(report | probed) == (
        "m in bfloat16, vLLM in float32, the faster one for it here (4.0 times, by a probe of its "
        "torch)"
    )
    assert overview.dtypes(report | {"vllm_dtype": "bfloat16"}).endswith("of every ratio over vLLM")
    assert overview.dtypes(report | {"vllm_dtype": "float32"}) == "m in bfloat16, vLLM in float32"
    assert overview.dtypes({"model": None}) == "the null engine"
    assert kind({"machine": {**MACHINE, "held_to_avx2": True}}) == "a CPU held to AVX2"


def row(system: str, delay_ms: int, seconds: float, n: int = 3, **more: Any) -> dict[str, Any]:
    """A row of a summary, whose baseline takes 6 s."""
    ratio = {"median": 6.0 / seconds, "low": 1.0, "high": 2.25, "n": n}
    metric = {"unit": "s", "median": seconds, "ratio": ratio}
    where = {"point": "first", "delay_ms": delay_ms, "system": system, "failed": 0}
    return {**where, "metrics": {"seconds": metric}, **more}


def summary(name: str, date: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    titles = {one["system"]: {"title": one["system"]} for one in rows}
    report = {"workload": name, "date": date, "repeats": 3, "systems": titles}
    return {**ALIKE, **report, "rows": rows, **more}


def test_one_file_holds_the_first_points_of_all_systems(tmp_path: Path) -> None:
    """A system that lost calls is left out, and so are further points and other benchmarks.
    The commits of all workloads are named."""
    plain, ours = "langchain-vllm", "weftline"
    chain = [row(plain, 0, 6), row(ours, 0, 4, failed=1), row(plain, 250, 6), row(ours, 250, 2)]
    chain.append(row(plain, 0, 9, point="second"))
    later = {"machine": {**MACHINE, "commit": "c2"}}
    for path, report in (
        ("chain_summary", summary("chain_summary", "day 1", chain)),
        ("rag", summary("rag", "day 2", [row(plain, 0, 6), row(ours, 0, 1.5)], **later)),
        ("tools", {"rows": []}),
    ):
        write(tmp_path, path, report)
    found = json.loads(overview.write_overview(tmp_path).read_text())
    assert (found["date"], found["machine"]["commit"]) == ("day 1", "c1, c2")
    assert [(one["workload"], one["delay_ms"], list(one["systems"])) for one in found["rows"]] == [
        ("chain_summary", 0, [plain]),
        ("chain_summary", 250, [plain, ours]),
        ("rag", 0, [plain, ours]),
    ]
    assert found["rows"][1]["systems"][ours] == {
        "median": 2,
        "ratio": {"median": 3, "low": 1, "high": 2.25, "n": 3},
    }
    with pytest.raises(InvalidRequest, match="no summaries"):
        overview.write_overview(tmp_path / "none")


def test_the_tables_are_written_from_the_newest_files(tmp_path: Path) -> None:
    """Each kind of machine has a table of its newest run. A machine that multiplies bfloat16 comes
    first, although the run of the other one is later.

    Our scheduler inside vLLM counts where it ran, elsewhere the server in front. The README has the
    first rows.
    """
    plain, inside, in_front = "langchain-vllm", "weftline-vllm-plugin", "weftline-vllm"
    page, readme = tmp_path / "benchmarks.md", tmp_path / "README.md"
    for path in (page, readme):
        path.write_text("one\n<!-- benchmarks -->\nold\n<!-- end of benchmarks -->\ntwo\n")
    with pytest.raises(InvalidRequest, match=r"no overview\.json"):
        overview.write_tables(tmp_path, page, readme)
    rows = [
        row(plain, 0, 6, bound=1.625),
        row(in_front, 0, 5),
        row(inside, 0, 4),
        row("weftline", 0, 2),
    ]
    rows += [row(plain, 250, 6, n=1), row(in_front, 250, 3, n=1)]
    slow = {"machine": {**MACHINE, "cpu": "another", "bf16_instructions": False}}
    agents = row(plain, 0, 6, metrics={"apps per minute": {"unit": "apps/min", "median": 20.0}})
    for folder, reports in (
        ("old", [summary("rag", "day 1", rows[:1])]),
        ("new", [summary("chain_summary", "day 3", rows), summary("rag", "day 3", rows)]),
        ("slow/quick", [summary("many_agents", "day 4", [agents], **slow)]),
    ):
        for report in reports:
            write(tmp_path / folder, report["workload"], report)
        overview.write_overview(tmp_path / folder)
    overview.write_tables(tmp_path, page, readme)
    text = page.read_text()
    newest = "**a CPU with bfloat16 instructions**, 2 cores"
    assert text.startswith(f"one\n<!-- benchmarks -->\n\n{newest}")
    assert text.endswith("\n\n<!-- end of benchmarks -->\ntwo\n") and "old" not in text
    link = "[Chain summary](benchmarks/workloads.md#chain-summary)"
    first, second = (line for line in text.splitlines() if line.startswith(f"| {link}"))
    cells = ("6 s", "4 s", "**1.50** (1.00 to 2.25), bound 1.62", "2 s", "**3.00** (1.00 to 2.25)")
    assert first == f"| {link} | 0 ms | {' | '.join(cells)} |"
    assert second == f"| {link} | 250 ms | 6 s | 3 s (in front) | **2.00** | – | – |"
    other = text.index("**another without bfloat16 instructions**")
    link = "workloads.md#many-tool-agents-a-small-kv-pool)"
    assert text.index(f"{link} | 0 ms | 20 apps/min | – | – | – | – |") > other
    shown = readme.read_text()
    assert "](docs/benchmarks/workloads.md#chain-summary)" in shown and "another" not in shown
    assert shown.count("\n| [") == 4


def test_the_committed_tables_are_those_of_the_committed_results(tmp_path: Path) -> None:
    """`weftline bench table` would change neither the page nor the README."""
    page, readme = tmp_path / "page.md", tmp_path / "README.md"
    for copy, path in ((page, overview.PAGE), (readme, overview.README)):
        copy.write_text(path.read_text())
    overview.write_tables(linked(RESULTS, tmp_path / "results"), page, readme)
    assert page.read_text() == overview.PAGE.read_text()
    assert readme.read_text() == overview.README.read_text()


def test_every_workload_has_its_place() -> None:
    """It has a row of the table, and a section of docs/benchmarks/workloads.md. Those of the pairs
    are workloads."""
    assert set(COLUMN) <= set(names())
    assert sorted(overview.ORDER) == names()
    text = (overview.PAGE.parent / overview.WORKLOADS).read_text()
    assert all(f"\n`{name}`. " in text for name in names())


def test_committed_results_are_small_summaries() -> None:
    """They hold no raw runs, and all fields that a reader needs to judge the numbers."""
    text = {path: path.read_text() for path in COMMITTED}
    assert 0 < sum(one.count("\n") for one in text.values()) < MOST_LINES
    for path, one in text.items():
        report = json.loads(one)
        if path.name.startswith("gpu"):
            assert {"date", "device", "kernels"} <= set(report), path
            continue
        assert report["date"], path
        assert {"cpu", "cores", "python", "versions", "commit"} <= set(report["machine"]), path
        if "workload" not in report:
            continue
        names = {"scale", "model", "dtype", "kv_tokens", "systems", "repeats", "partial", "rows"}
        assert names <= set(report) and "runs" not in report, path
        for row in report["rows"]:
            assert {"point", "delay_ms", "system", "apps", "failed"} <= set(row), path
            for found in row["metrics"].values():
                assert {"median", "low", "high", "n"} <= set(found), path


def test_the_pairs_on_vllm_are_a_table(tmp_path: Path) -> None:
    """A pair is of one repetition, and a semaphore is a baseline of its own."""

    def ran(system: str, repeat: int, seconds: float, load: float = 0.25) -> dict[str, Any]:
        done = App("agent", 0.0, seconds, counted=10)
        run = Run(
            system=system,
            point="2 agents",
            x=2,
            delay_ms=0,
            repeat=repeat,
            apps=[done],
            client_cpu_s=0.0,
            server_cpu_s=0.0,
            others_cpu_s=0.0,
            load=load,
        )
        return run.to_json()

    folder = tmp_path / "2030-01-01-a-machine" / "on-vllm"
    with pytest.raises(InvalidRequest, match="no pairs"):
        pairs.write_pairs(folder)
    plain, inside, in_front, few = (
        "langchain-vllm",
        "weftline-vllm-plugin",
        "weftline-vllm",
        "langchain-vllm-12",  # not one that the column takes by itself
    )
    runs = [
        *(ran(plain, repeat, seconds) for repeat, seconds in enumerate((60, 120, 30))),
        *(ran(in_front, repeat, seconds) for repeat, seconds in enumerate((30, 80, 20))),
        *(ran(few, repeat, seconds) for repeat, seconds in enumerate((40, 60, 20))),
        ran("openai-weftline-vllm", 0, 40),
        ran(inside, 0, 120, load=1.5),  # it was interrupted after the first repetition
    ]
    machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "python": "3", "versions": {}}
    machine |= {"bf16_instructions": True, "commit": "c1"}
    report = {"workload": "many_agents", "began": "then", "machine": machine, "runs": runs}
    report |= {"scale": {"length": 1, "count": 1}, "model": "m", "dtype": "d", "vllm_dtype": "d"}
    results = write(folder / RAW, "many_agents", {**report, "vllm_probe_ms": None})
    assert results.exists()
    path, said = pairs.write_pairs(folder)
    assert path == folder.parent / "on-vllm.json"
    label, end = "Many tool agents, a small KV pool, 2 agents | 0 ms", "0.2 |"
    front = "**1.50** (1.50 to 1.75; 3 of 3, p = 0.25)"
    best = "**1.00** (0.88 to 1.17; 1 of 3, p = 1)"
    assert said.splitlines()[2:] == [
        f"| {label} | ChatOpenAI + vLLM | 1 apps/min | {front} "
        f"| **0.50** (0.50 to 0.50; 0 of 1, p = 1) | – | {end}",
        f"| {label} | ChatOpenAI + vLLM, 12 at once | 1.5 apps/min | {best} "
        f"| **0.33** (0.33 to 0.33; 0 of 1, p = 1) | – | {end}",
        f"| {label.replace(' |', ', ChatOpenAI |')} | ChatOpenAI + vLLM | 1 apps/min "
        f"| **1.50** (1.50 to 1.50; 1 of 1, p = 1) | – | – | {end}",
    ]
