"""The tests that a framework publishes in the source distribution of its installed version."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "suites"
LIMIT_S = 600  # the longest suite takes 110 s of a slow core


@dataclass(frozen=True)
class Outcome:
    """How many tests ran, which did not pass, and what the run's plugins counted."""

    passed: int
    failed: frozenset[str]
    counted: dict[str, int]


@dataclass(frozen=True)
class Suite:
    """The tests of one package.

    `tests` is the folder to run. `tools` are what the tests import and we do not install; they come
    without dependencies, so that ours stay as they are. `environment` is what the tests read.
    """

    package: str
    tests: str
    tools: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    def fetch(self) -> None:
        """Get the tests and their tools, once."""
        source = self._source()
        if not source.exists():
            folder = source.parent
            folder.mkdir(parents=True, exist_ok=True)
            what = f"{self.package}=={version(self.package)}"
            _pip("download", "--no-binary", ":all:", "--no-deps", "-d", folder, what)
            with tarfile.open(folder / f"{source.name}.tar.gz") as archive:
                wanted = [
                    member
                    for member in archive.getmembers()
                    if member.name.split("/")[1] in ("tests", "pyproject.toml")
                ]
                archive.extractall(folder, wanted, filter="data")  # its package is installed
        if not self._tools().exists():
            _pip("install", "--no-deps", "--target", self._tools(), *self.tools)

    def run(self, name: str, *options: str) -> Outcome:
        """Run the tests without network, and read what became of each."""
        report = self._source().parent / f"{name}.xml"
        report.unlink(missing_ok=True)
        paths = [self._tools(), ROOT / ".ci" / "with_weftline", os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:langsmith_plugin"]
        command += ["-o", "asyncio_default_fixture_loop_scope=function"]
        command += ["--disable-socket", "--allow-unix-socket", f"--junitxml={report}", *options]
        found = {"PYTHONPATH": os.pathsep.join(map(str, paths))} | dict(self.environment)
        subprocess.run(
            [*command, self.tests],
            cwd=self._source(),
            env=os.environ | found,
            stdout=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
        return _outcome(ET.parse(report))

    def _source(self) -> Path:
        name = f"{self.package.replace('-', '_')}-{version(self.package)}"
        return FOLDER / self.package / name

    def _tools(self) -> Path:
        return FOLDER / self.package / "tools"


def _outcome(report: ET.ElementTree) -> Outcome:
    cases = list(report.iter("testcase"))
    failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = frozenset(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    counted = {
        one.attrib["name"]: int(one.attrib["value"])
        for one in report.iterfind("./testsuite/properties/property")
    }
    return Outcome(len(cases) - skipped - len(failed), names, counted)


def listed(names: Sequence[str]) -> str:
    """Names of tests, a line each."""
    return "\n  ".join(["", *(names or ["none"])])


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *map(str, arguments)], check=True)
