"""`weftline bench` on the null engine: all workloads on all systems, and the table of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness.workload import names
from bench.report.overview import write_overview, write_tables

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
    assert {"cpu", "server_cores", "client_cores", "versions", "commit"} <= set(report["machine"])
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


def test_the_table_is_made_of_the_results(results: Path, tmp_path: Path) -> None:
    """Every workload has its row in the page's table."""
    path = write_overview(results)
    rows = json.loads(path.read_text())["rows"]
    path.rename(tmp_path / path.name)
    assert {row["workload"] for row in rows} == set(names())
    page, readme = tmp_path / "benchmarks.md", tmp_path / "README.md"
    for file in (page, readme):
        file.write_text("<!-- benchmarks -->\n<!-- end of benchmarks -->\n")
    write_tables(tmp_path, page, readme)
    assert page.read_text().count("](benchmarks/workloads.md#") == len(rows)
