"""Single runs of `weftline bench`: quick, in parts, on given cores, interrupted, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.micro import server

BENCH = [sys.executable, "-m", "weftline_server", "bench"]


def test_a_quick_run_asks_some_systems_once(tmp_path: Path) -> None:
    """It takes them only at the first point and round trip."""
    words = ["chain_summary", "--null", "--systems", "weftline,openai-weftline"]
    done = subprocess.run([*BENCH, *words, "--folder", str(tmp_path)], capture_output=True)
    assert done.returncode == 0
    report = json.loads((tmp_path / "chain_summary.json").read_text())
    raw = json.loads((tmp_path / "raw" / "chain_summary.json").read_text())
    found = [(run["system"], run["delay_ms"]) for run in raw["runs"]]
    assert found == [("weftline", 0), ("openai-weftline", 0), ("weftline", 250)]
    assert (
        report["repeated_tokens"] == 0.0
    )  # it was counted, and the prompts have no common paragraph


def test_a_run_in_parts_is_one_run(tmp_path: Path) -> None:
    """A part ends after a complete turn when its time is over; the next part keeps its runs.

    If nothing is left, no server is started. Other systems are refused, as runs would be lost.
    """
    words = ["chain_summary", "--null", "--repeat", "2", "--delays", "0", "--folder", str(tmp_path)]
    both = [*words, "--systems", "weftline,openai-weftline", "--resume"]
    path = tmp_path / "chain_summary.json"

    def part(*more: str) -> tuple[int, str, list[dict[str, Any]]]:
        done = subprocess.run([*BENCH, *both, *more], capture_output=True, text=True)
        runs = json.loads((tmp_path / "raw" / path.name).read_text())["runs"]
        return done.returncode, done.stdout + done.stderr, runs

    code, said, first = part("--within", "0.001")
    assert (code, len(first)) == (3, 2) and "the time is over" in said
    assert json.loads(path.read_text())["partial"] is True
    code, said, whole = part()
    assert code == 0 and "has 2 runs, which are kept" in said
    assert whole[:2] == first
    found = [(run["repeat"], run["system"]) for run in whole]
    assert found == [
        (0, "weftline"),
        (0, "openai-weftline"),
        (1, "openai-weftline"),
        (1, "weftline"),
    ]
    report = json.loads(path.read_text())
    assert report["partial"] is False
    assert {row["metrics"]["seconds"]["n"] for row in report["rows"]} == {2}
    code, said, again = part()
    assert code == 0 and again == whole and "starting" not in said
    done = subprocess.run([*BENCH, *words, "--resume"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "holds weftline, openai-weftline: go on with the same" in done.stderr


def test_everything_runs_on_the_cores_it_was_given(tmp_path: Path) -> None:
    """Servers and client run on their cores, and the results name them. A list of cores that do not
    exist is one sentence."""
    last = max(os.sched_getaffinity(0))
    words = ["chain_summary", "--null", "--first", "--delays", "0", "--folder", str(tmp_path)]
    more = ["--cores", str(last), "--client-cores", str(last)]
    assert subprocess.run([*BENCH, *words, *more], capture_output=True).returncode == 0
    report = json.loads((tmp_path / "chain_summary.json").read_text())
    assert {tuple(about["cores"]) for about in report["systems"].values()} == {(last,)}
    assert (report["machine"]["server_cores"], report["machine"]["client_cores"]) == (
        [last],
        [last],
    )
    done = subprocess.run([*BENCH, *words, "--cores", "9999"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("weftline bench: --cores '9999' is no list of cores: there are ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_partial_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C gives one sentence and exit code 130, and keeps the runs so far. So does SIGTERM to a
    process in the background of a shell, where SIGINT is ignored."""
    at_start = signal.default_int_handler if number == signal.SIGINT else signal.SIG_IGN
    process = subprocess.Popen(
        [*BENCH, "chain_summary", "--null", "--repeat", "1000", "--folder", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, at_start),
    )
    path = tmp_path / "chain_summary.json"
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.1)
    children = _below(process.pid)
    assert len(children) >= 2  # the harness, and its server
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said == "weftline bench: interrupted; the results are marked partial\n"
    assert json.loads(path.read_text())["partial"] is True
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def _below(pid: int) -> list[int]:
    """All descendants of the process `pid`."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for word in words for found in (int(word), *_below(int(word)))]


def test_a_model_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    """It is found before any server is started."""
    words = ["chain_summary", "--model", str(tmp_path), "--folder", str(tmp_path / "out")]
    done = subprocess.run([*BENCH, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"weftline bench: {tmp_path} has no config.json: ")
    assert done.stderr.count("\n") == 1


def test_the_servers_own_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At small sizes nothing is lost, with a store and without one."""
    monkeypatch.setattr(server, "DURABLE_TURNS", 1)
    monkeypatch.setattr("sys.argv", ["server", "--sessions", "8", "--folder", str(tmp_path)])
    server.main()
    report = json.loads((tmp_path / "server.json").read_text())
    assert [(one["calls"], one["lost_or_wrong"]) for one in report["whole_path"]] == [(40, 0)] * 2
    assert report["durable"]["lost_or_wrong"] == 0
