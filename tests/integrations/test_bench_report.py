"""The sentences and tables of docs/benchmarks.md, for numbers given by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness import probe
from bench.harness.results import RESULTS
from bench.harness.systems import SYSTEMS
from bench.report import charts, page, programs, systems
from tests.committed import committed, linked
from weftline.errors import InvalidRequest

MOST_LINES = 5000  # of all summaries together
COMMITTED = [path for path in committed(RESULTS) if path.suffix == ".json"]


def test_the_page_counts_equal_answers() -> None:
    """Equal answers are summed over all points."""
    of = {"one": {"title": "One"}, "two": {"title": "Two"}}
    rows = [{"system": "two", "same_answers": n, "compared": 4, "point": "p"} for n in (4, 3)]
    report = {"title": "Chain", "systems": of, "rows": rows}
    assert page.exact({"chain": report}).splitlines()[-1] == "| Chain | Two | 7 of 8 |"
    assert page.exact({}) == "Not measured on this machine."


def test_the_page_shows_the_figures_of_a_gpu(tmp_path: Path) -> None:
    """It shows the newest result of each figure: applications, and batches that decode."""
    assert programs.gpu(tmp_path) == ""
    about = {"device": "A GPU", "date": "2030-01-02"}
    batch = {"mean_latency_s": 2.0, "ms_a_token": 20.0}
    decoding = {"batch": 8, "most_output": 9, "counts": True, "tree": batch, "blocks_shared": batch}
    app = {"point": "4 files", "sharing": "tree", "policy": "app", **batch}
    late = {"point": "4 files", "sharing": "off", "policy": "request", "left_out": "for time"}
    for day, figure, rows in (
        ("2030-01-01", 18, []),
        ("2030-01-02", 18, [app, late]),
        ("2030-01-02", 15, [{**decoding, "off": "does not fit"}]),
    ):
        path = tmp_path / f"{day}-a-gpu" / f"gpu-figure-{figure}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**about, "figure": figure, "rows": rows}))
    lines = programs.gpu(tmp_path).splitlines()
    assert lines.index("Figure 15, A GPU, 2030-01-02:") < lines.index(
        "Figure 18, A GPU, 2030-01-02:"
    )
    assert "| batch 8, up to 9 tokens | blocks | – | 2.00 s | 20.0 |" in lines
    assert "| batch 8, up to 9 tokens | off | – | does not fit | – |" in lines
    assert "| 4 files | tree | app | 2.00 s | 20.0 |" in lines
    assert "| 4 files | off | request | for time | – |" in lines


def test_the_time_that_each_part_adds() -> None:
    """Without groups weftline is half as fast, which adds its own time; without prefix no
    slower."""
    ratios = {"weftline": 1.0, "without-groups": 0.5, "without-prefix": 1.01}
    rows = [
        {"system": name, "point": "p", "delay_ms": 0, "metrics": {"s": {"ratio": {"median": r}}}}
        for name, r in ratios.items()
    ]
    titles = {name: {"title": SYSTEMS[name].title} for name in ratios}
    found = charts.losses({"rows": rows, "systems": titles})
    assert found == {"weftline": 1.0, "without groups": 1.0, "without prefix": 0.0}


def test_the_page_says_in_which_type_vllm_ran() -> None:
    """The probe chose it, or it was given; the page warns if the processor is slow at it."""
    machine = {"bf16_instructions": False}
    report = {"model": "m", "dtype": "bfloat16", "machine": machine}
    probed = {"vllm_dtype": "float32", "vllm_probe_ms": {"bfloat16": 18.0, "float32": 4.5}}
    assert probe.fastest(probed["vllm_probe_ms"]) == "float32"
    assert page.dtypes(report | probed) == (
        "m in bfloat16, vLLM in float32, the faster one for it here (4.0 times, by a probe of its "
        "torch)"
    )
    assert page.dtypes(report | {"vllm_dtype": "bfloat16"}).endswith("of every ratio over vLLM")
    assert page.dtypes(report | {"vllm_dtype": "float32"}) == "m in bfloat16, vLLM in float32"
    assert page.dtypes({"model": None}) == "the null engine"


def test_missing_files_come_from_the_newest_results_of_the_machine(tmp_path: Path) -> None:
    """A folder's own file comes first; files of other machines do not count."""
    for folder, name in (("01-box", "a"), ("02-box", "a"), ("03-box", "b"), ("04-tin", "a")):
        (tmp_path / f"2026-01-{folder}").mkdir(exist_ok=True)
        (tmp_path / f"2026-01-{folder}" / f"{name}.json").write_text("{}")
    own = tmp_path / "2026-01-03-box"
    assert page.newest(own, "a.json") == [tmp_path / "2026-01-02-box" / "a.json"]
    assert page.newest(own, "b.json") == [own / "b.json"]
    assert page.newest(own, "c.json") == []


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


def test_every_committed_workload_has_the_data_of_its_pictures(tmp_path: Path) -> None:
    """A checkout can draw the page with all of its pictures."""
    folder, reports = page.find(linked(RESULTS, tmp_path))
    measured = [name for name in page.ORDER if name in reports]
    assert set(page.ORDER) - set(measured) == {"tool_mix"}, "it was added after the last full run"
    for name in measured:
        assert "timeline" in reports[name], f"{folder}/{name}"


def test_the_whole_application_in_one_graph(tmp_path: Path) -> None:
    """The newest run of each kind of machine is shown, the row's base first; without a run there
    is no section.
    """
    assert programs.rag_graph(tmp_path) == ""

    def system(seconds: float, ratio: float, **more: float) -> dict[str, Any]:
        def spread(value: float) -> dict[str, Any]:
            return {"median": value, "low": value, "high": value, "n": 3}

        found = {"seconds": spread(seconds), "times_faster": spread(ratio)}
        return found | {name: spread(value) for name, value in more.items()}

    systems = {"weftline": system(2.0, 1.5, of_bound=0.9), "llamaindex": system(3.0, 1.0)}
    row: dict[str, Any] = {
        "app": "naive",
        "rate": "low",
        "delay_ms": 0,
        "base": "llamaindex",
        "load": 2.5,
    }
    row["systems"] = systems
    runs = (("old", "a CPU", "a1"), ("other", "a slower CPU", "b1"), ("recent", "a CPU", "a2"))
    for day, cpu, commit in runs:
        machine = {"cpu": cpu, "cores": 2, "bf16_instructions": False, "commit": commit}
        (tmp_path / day).mkdir()
        report = {"machine": machine, "rows": [row]}
        (tmp_path / day / "rag_graph-quick.json").write_text(json.dumps(report))
    lines = programs.rag_graph(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("On ")] == [
        "On a CPU without bfloat16 instructions, weftline at a2:",
        "On a slower CPU without bfloat16 instructions, weftline at b1:",
    ]
    *_, base, ours = lines
    assert (
        base == "| naive | low | 0 ms | 2.5 | llamaindex | 3 | 3.00 s (3.00 to 3.00) | 1.00 | – |"
    )
    assert (
        ours == "| naive | low | 0 ms | 2.5 | weftline | 3 | 2.00 s (2.00 to 2.00) | 1.50 | 90% |"
    )


def test_what_the_server_earns_on_the_same_engine_leads() -> None:
    """Our scheduler inside vLLM counts where it was measured; elsewhere the server in front. A
    ratio of several repetitions has its quartiles.
    """

    def row(system: str, delay_ms: int, seconds: float) -> dict[str, Any]:
        ratio = {"median": 6.0 / seconds, "low": 1.0, "high": 2.25, "n": 1 if delay_ms else 3}
        metric = {"unit": "s", "median": seconds, "ratio": ratio}
        where = {"point": "p", "delay_ms": delay_ms, "cache": "cold", "system": system}
        return {**where, "metrics": {"seconds": metric}}

    systems = ("langchain-vllm", "weftline-vllm", "weftline-vllm-plugin")
    rows = [row(system, 0, seconds) for system, seconds in zip(systems, (6, 5, 4), strict=True)]
    rows += [row("langchain-vllm", 250, 6), row("weftline-vllm", 250, 3)]
    report = {"systems": dict.fromkeys(systems), "rows": rows}
    lines = page.same_engine({"chain_summary": report}).splitlines()
    link = "[Chain summary](#chain-summary)"
    assert lines[-2:] == [
        f"| {link} | 0 ms | 6 s | 4 s | inside | **1.50** (1.00 to 2.25) |",
        f"| {link} | 250 ms | 6 s | 3 s | in front | **2.00** |",
    ]
    alone = page.same_engine({"chain_summary": {**report, "rows": rows[:1]}})
    assert alone == "Not measured on this machine."
    text = (page.DOCS / "benchmarks.md").read_text()
    assert 0 < text.index("What the server earns on") < text.index("Server and engine together")


def test_one_table_holds_the_first_points_of_all_systems(tmp_path: Path) -> None:
    """A system that lost calls has a dash, and so has one that a workload does not run on."""

    def row(system: str, delay_ms: int, seconds: float, **more: Any) -> dict[str, Any]:
        metric = {"unit": "s", "median": seconds, "ratio": {"median": 6.0 / seconds}}
        where = {"point": "first", "delay_ms": delay_ms, "cache": "cold", "system": system}
        return {**where, "failed": 0, "metrics": {"seconds": metric}, **more}

    titles = {"plain": {"title": "Plain"}, "hand": {"title": "By hand"}, "ours": {"title": "Ours"}}
    machine = {"cpu": "a CPU", "cores": 2, "bf16_instructions": True, "commit": "c1"}
    alike = {"date": "today", "machine": machine, "scale": {"name": "quick"}}
    alike |= dict.fromkeys(one for one in systems.ALIKE if one not in alike)
    chain = [row("plain", 0, 6), row("hand", 0, 5), row("ours", 0, 4, failed=1)]
    chain += [row("plain", 250, 6), row("hand", 250, 3), row("ours", 250, 2)]
    chain += [row("plain", 0, 9, point="second"), row("plain", 0, 9, cache="warm")]
    rag = [row("plain", 0, 6), row("ours", 0, 1.5)]
    for name, rows, of in (("chain_summary", chain, titles), ("rag", rag, titles)):
        report = {**alike, "workload": name, "repeats": 3, "systems": of, "rows": rows}
        if name == "rag":  # it was measured again later
            report["machine"] = {**machine, "commit": "c2"}
        path = tmp_path / "quick" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(report))
    path = systems.write_systems(tmp_path / "quick")
    assert path == tmp_path / "quick-systems.json"
    found = json.loads(path.read_text())
    assert found["machine"]["commit"] == "c1, c2"
    lines = systems.section(found, "About.").splitlines()
    assert (
        lines[0]
        == "## All systems at the sizes of `--scale quick`, on a CPU with bfloat16 instructions"
    )
    assert "the median of 3 repetitions" in " ".join(lines)
    assert lines[-4:] == [
        "|---|---|---|---|---|",
        "| Chain summary, s | 0 ms | 6 (1.00) | 5 (1.20) | – |",
        "| Chain summary, s | 250 ms | 6 (1.00) | 3 (2.00) | 2 (3.00) |",
        "| RAG query engine (LlamaIndex), s | 0 ms | 6 (1.00) | – | 1.5 (4.00) |",
    ]
    with pytest.raises(InvalidRequest, match="no summaries"):
        systems.write_systems(tmp_path / "none")
