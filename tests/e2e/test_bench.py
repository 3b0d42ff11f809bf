"""`weftline bench` on the null engine: every workload runs, and the report is drawn from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.harness.workload import load, names
from bench.report.page import write_headline, write_page

# The first test waits for all workloads.
pytestmark = pytest.mark.timeout(900)

BENCH = [sys.executable, "-m", "weftline_server", "bench"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all workloads, run once at the smallest scale."""
    folder = tmp_path_factory.mktemp("results")
    words = ["all", "--quick", "--null", "--folder", str(folder)]
    done = subprocess.run([*BENCH, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", names())
def test_a_workload_runs_on_every_system(results: Path, name: str) -> None:
    """Nothing fails. All systems give as many tokens, if the workload fixes the requests."""
    report: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
    assert report["partial"] is False
    errors = [app["error"] for run in report["runs"] for app in run["apps"] if app["error"]]
    assert errors == []
    assert {row["system"] for row in report["summary"]} == set(report["systems"])
    assert all(row["metrics"] for row in report["summary"])
    if name == "chain_background":  # it lasts as long as its chain does
        return
    for point in {(row["point"], row["delay_ms"]) for row in report["summary"]}:
        rows = [row for row in report["summary"] if (row["point"], row["delay_ms"]) == point]
        assert len({tuple(row["output_tokens"]) for row in rows}) == 1, rows


def test_the_report_is_drawn_from_the_results(results: Path, tmp_path: Path) -> None:
    """Every workload has its section, and every picture on the page is a valid SVG."""
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
    again = {path.name: path.read_bytes() for path in tmp_path.glob("benchmarks/*.svg")}
    write_page(results, tmp_path)
    assert again == {path.name: path.read_bytes() for path in tmp_path.glob("benchmarks/*.svg")}
