"""`weftline bench NAME`: runs a benchmark of the source checkout that holds this weftline."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from weftline.contract.errors import InvalidRequest

# Names that the harness takes beside its workloads: run all of them, run pairs on vLLM, and write
# the tables.
HARNESS = ("all", "on-vllm", "table")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="the benchmark to run (default: list them)"
    )
    parser.add_argument(
        "arguments",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="arguments for the benchmark itself",
    )


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, or list all. Return its exit code. Raises InvalidRequest."""
    folder = find_benchmarks(Path(__file__))
    if args.name is None and folder is not None:
        print("\n".join(benchmarks(folder)) or "there are no benchmarks yet")
        return 0
    words = pick(folder, args.name)
    assert folder is not None, "pick refuses to run without one"
    path = os.pathsep.join(filter(None, (str(folder.parent), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *words, *args.arguments], env={**os.environ, "PYTHONPATH": path}
    )
    # Ctrl-C also reaches the benchmark. It stops its servers first, so wait until it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    return process.wait()


def pick(folder: Path | None, name: str | None) -> list[str]:
    """Return Python's arguments for benchmark `name`.

    Raises InvalidRequest outside a checkout, or if there is no such benchmark.
    """
    if folder is None:
        raise InvalidRequest(
            "benchmarks are run in a source checkout: clone the repository and run `make bench`"
        )
    found = benchmarks(folder)
    if name not in found:
        known = ", ".join(found) or "none yet"
        raise InvalidRequest(f"there is no benchmark {str(name)[:80]!r}: there are {known}")
    return found[name]


def find_benchmarks(here: Path) -> Path | None:
    """Return the bench folder of the checkout that holds `here`, or None outside a checkout."""
    root = here.resolve().parents[3]
    folder = root / "bench"
    return folder if folder.is_dir() and (root / "pyproject.toml").is_file() else None


def benchmarks(folder: Path) -> dict[str, list[str]]:
    """Python's arguments by name: for each program of bench/micro and each harness workload."""
    programs = {
        path.stem: ["-m", f"bench.micro.{path.stem}"] for path in folder.glob("micro/[!_]*.py")
    }
    workloads = [path.stem for path in folder.glob("workloads/[!_]*.py")]
    harness = [*HARNESS, *workloads] if workloads else []
    return dict(sorted((programs | {n: ["-m", "bench.harness", n] for n in harness}).items()))
