"""`weftline bench` on the null engine: all workloads on all systems, and the report of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.harness.systems import ABLATION
from bench.harness.workload import load, names
from bench.report.page import write_headline, write_page

BENCH = [sys.executable, "-m", "weftline_server", "bench"]
# The first test waits for all workloads.
pytestmark = pytest.mark.timeout(900)

# Workloads wait for round trips and pauses most of the time, so three harnesses share a core well.
AT_ONCE = 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of all workloads, run once at the smallest scale."""
    folder = tmp_path_factory.mktemp("results")
    words = ["all", "--quick", "--null", "--folder", str(folder), "--names"]
    harnesses = [
        subprocess.Popen(
            [*BENCH, *words, ",".join(names()[first::AT_ONCE])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for first in range(AT_ONCE)
    ]
    try:
        said = [harness.communicate(timeout=600)[0] for harness in harnesses]
    finally:
        for harness in harnesses:
            harness.terminate()  # it stops its servers; nothing happens if it has ended
            harness.communicate()
    assert [harness.returncode for harness in harnesses] == [0] * AT_ONCE, "\n".join(said)
    return folder


@pytest.mark.parametrize("name", names())
def test_a_workload_runs_on_every_system(results: Path, name: str) -> None:
    """Nothing fails, and all systems answer as many tokens if the number of requests is fixed."""
    report: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    assert report["partial"] is False
    runs = json.loads((results / "raw" / f"{name}.json").read_text())["runs"]
    errors = [app["error"] for run in runs for app in run["apps"] if app["error"]]
    assert errors == []
    assert {row["system"] for row in report["rows"]} == set(report["systems"])
    assert all(row["metrics"] for row in report["rows"])
    if name == "chain_background":  # it lasts as long as its chain does
        return
    for point in {(row["point"], row["delay_ms"]) for row in report["rows"]}:
        rows = [row for row in report["rows"] if (row["point"], row["delay_ms"]) == point]
        assert len({tuple(row["output_tokens"]) for row in rows}) == 1, rows


def test_the_report_is_drawn_from_the_results(results: Path, tmp_path: Path) -> None:
    """Every workload has its section, and every picture of the page is an SVG."""
    page = write_page(results, tmp_path).read_text()
    sections = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert {load(name).title for name in names()} <= set(sections)
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", page)
    assert len(pictures) > 2 * len(names())
    for picture in pictures:
        assert ElementTree.parse(tmp_path / picture).getroot().tag.endswith("svg")
    assert "Partial" not in page
    readme = tmp_path / "README.md"
    readme.write_text("one\n<!-- benchmarks -->\nold\n<!-- end of benchmarks -->\ntwo\n")
    assert write_headline(results, readme)
    table = readme.read_text().splitlines()
    assert (table[0], table[-1], "old" in table) == ("one", "two", False)
    assert "| [Map-reduce summary](docs/benchmarks.md#map-reduce-summary) |" in readme.read_text()


def test_parts_left_out_in_turn_with_cold_and_warm_caches(results: Path, tmp_path: Path) -> None:
    """Each has its own process, both caches are named, and the page stacks the added times."""
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    words = ["chain_summary", "--null", "--first", "--delays", "0", "--folder", str(tmp_path)]
    more = ["--ablation", "--warm"]
    done = subprocess.run([*BENCH, *words, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "raw" / "chain_summary-ablation.json").read_text())
    found = [(run["system"], run["cache"]) for run in report["runs"]]
    assert found == [(name, cache) for name in ABLATION for cache in ("cold", "warm")]
    assert len({about["command"] for about in report["systems"].values()}) == len(ABLATION)
    assert {"cpu", "server_cores", "client_cores", "versions", "commit"} <= set(report["machine"])
    page = write_page(tmp_path, tmp_path).read_text()
    assert "![Ablation](benchmarks/ablation.svg)" in page
    assert ElementTree.parse(tmp_path / "benchmarks" / "ablation.svg").getroot() is not None
