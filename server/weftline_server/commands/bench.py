"""`weftline bench NAME`: runs a benchmark of the source checkout that this weftline comes from."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one; without it, the list")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="passed on to the benchmark"
    )


def run(args: argparse.Namespace) -> int:
    """The benchmark's own exit code; 1 outside a checkout, or if there is none of that name."""
    folder = find_benchmarks(Path(__file__))
    if folder is None:
        return _fail(
            "benchmarks are run in a source checkout: clone the repository and install it with "
            "`make install`"
        )
    found = benchmarks(folder)
    if args.name is None:
        print("\n".join(found) or "there are no benchmarks yet")
        return 0
    if args.name not in found:
        known = ", ".join(found) or "none yet"
        return _fail(f"there is no benchmark {args.name[:80]!r}: there are {known}")
    command = [sys.executable, str(found[args.name]), *args.arguments]
    return subprocess.run(command, cwd=folder.parent).returncode


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


def _fail(sentence: str) -> int:
    print(f"weftline: {sentence}", file=sys.stderr)
    return _FAILED
