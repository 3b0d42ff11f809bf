"""Runs langchain-core's own unit tests without and with a ChatWeftline alive: the same must fail.

The tests come from the source distribution of the langchain-core that is installed. Some fail by
themselves, for they pin versions of other packages. With the hook on one more may, which counts
handlers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "langchain-core-suite"
# What the tests import and we do not install; without dependencies, so that ours stay as they are.
_TOOLS = (
    "blockbuster>=1.5.18,<1.6",
    "forbiddenfruit",
    "freezegun>=1.2.2,<2",
    "grandalf>=0.8,<1",
    "pyparsing",
    "pytest-mock>=3.10,<4",
    "responses>=0.25,<1",
)
COUNTS_HANDLERS = "test_merge_config_callbacks"


@dataclass(frozen=True)
class Outcome:
    """How many tests ran, and which did not pass."""

    passed: int
    failed: frozenset[str]


def main() -> int:
    """Exit code 0 if the hook makes no test fail but the one that counts handlers."""
    tests = _tests(version("langchain-core"))
    without, with_ = _run(tests, "without"), _run(tests, "with", "-p", "weftline_alive")
    for name, outcome in (("without", without), ("with", with_)):
        print(f"{name} a ChatWeftline: {outcome.passed} passed, {len(outcome.failed)} failed")
    print("failed without:", *sorted(without.failed), sep="\n  ")
    more = sorted(with_.failed - without.failed)
    print("failed with it only:", *(more or ["none"]), sep="\n  ")
    return int(any(COUNTS_HANDLERS not in test for test in more))


def _tests(core: str) -> Path:
    """The folder of langchain-core's sources, fetched once."""
    source = FOLDER / f"langchain_core-{core}"
    if not source.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        _pip(
            "download", "--no-binary", ":all:", "--no-deps", "-d", FOLDER, f"langchain-core=={core}"
        )
        with tarfile.open(FOLDER / f"langchain_core-{core}.tar.gz") as archive:
            wanted = [
                member
                for member in archive.getmembers()
                if member.name.split("/")[1] in ("tests", "pyproject.toml")
            ]
            archive.extractall(FOLDER, wanted, filter="data")  # its package is installed
    if not (FOLDER / "tools").exists():
        _pip("install", "--no-deps", "--target", FOLDER / "tools", *_TOOLS)
    return source


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *map(str, arguments)], check=True)


def _run(source: Path, name: str, *options: str) -> Outcome:
    """Run the unit tests and read what became of each."""
    report = FOLDER / f"{name}.xml"
    paths = [FOLDER / "tools", ROOT / ".ci" / "with_weftline", os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["--disable-socket", "--allow-unix-socket", f"--junitxml={report}", *options]
    subprocess.run(
        [*command, "tests/unit_tests"],
        cwd=source,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.DEVNULL,
    )
    cases = list(ET.parse(report).iter("testcase"))
    failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = frozenset(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return Outcome(len(cases) - skipped - len(failed), names)


if __name__ == "__main__":
    sys.exit(main())
