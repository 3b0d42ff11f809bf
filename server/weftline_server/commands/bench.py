"""`weftline bench NAME`: runs a benchmark of the source checkout that this weftline comes from."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from weftline.errors import InvalidRequest


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
    program = pick(folder, args.name)
    return subprocess.run([sys.executable, str(program), *args.arguments]).returncode


def pick(folder: Path | None, name: str | None) -> Path:
    """The program of benchmark `name`. Raises InvalidRequest outside a checkout, or without it."""
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


def benchmarks(folder: Path) -> dict[str, Path]:
    """By name: bench/NAME.py, and bench/NAME where it is a program of several files."""
    files = {path.stem: path for path in folder.glob("[!_]*.py")}
    folders = {path.parent.name: path.parent for path in folder.glob("*/__main__.py")}
    return dict(sorted((files | folders).items()))
