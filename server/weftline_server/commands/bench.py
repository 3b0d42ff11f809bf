"""`weftline bench NAME`: runs a benchmark of the source checkout that this weftline comes from."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from weftline.errors import InvalidRequest

# Of the harness beside its workloads: run all of them, and draw what they found.
HARNESS = ("all", "report", "summarise")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one; without it, the list")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="passed on to the benchmark"
    )


def run(args: argparse.Namespace) -> int:
    """The benchmark's own exit code. Raises InvalidRequest where `pick` does."""
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
    # Ctrl-C reaches the benchmark, too, which stops its servers first: it says when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    return process.wait()


def pick(folder: Path | None, name: str | None) -> list[str]:
    """What Python runs for `name`. Raises InvalidRequest outside a checkout, or without it."""
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
    """The bench folder of the checkout that holds `here`, or None outside of one."""
    root = here.resolve().parents[3]
    folder = root / "bench"
    return folder if folder.is_dir() and (root / "pyproject.toml").is_file() else None


def benchmarks(folder: Path) -> dict[str, list[str]]:
    """The arguments of Python for each benchmark: the programs of bench/micro, and the names that
    the harness runs."""
    programs = {
        path.stem: ["-m", f"bench.micro.{path.stem}"] for path in folder.glob("micro/[!_]*.py")
    }
    workloads = [path.stem for path in folder.glob("workloads/[!_]*.py")]
    harness = [*HARNESS, *workloads] if workloads else []
    return dict(sorted((programs | {n: ["-m", "bench.harness", n] for n in harness}).items()))
