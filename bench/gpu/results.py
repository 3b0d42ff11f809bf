"""Writes the results of a GPU, and finds those that are older than their kernels.

It needs only the standard library, so that a test without torch can compare results with kernels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kernels.hashes import in_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def changed(report: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """The kernels of `report` that have changed or are gone since it was written."""
    return [name for name, digest in report["kernels"].items() if now.get(name) != digest]


def stale(results: Path, now: Mapping[str, str]) -> list[str]:
    """A sentence for each newest report, by machine and file, that is older than its kernels."""
    newest: dict[tuple[str, str], Path] = {}
    for path in sorted(results.glob("*/gpu*.json")):
        newest[path.parent.name[11:], path.name] = path  # folders are DATE-MACHINE, in order
    found = {path: changed(json.loads(path.read_text()), now) for path in newest.values()}
    return [
        f"{path.relative_to(results)} is older than {', '.join(names)}: run make gpu again"
        for path, names in found.items()
        if names
    ]


def write(
    report: Mapping[str, Any], date: str, machine: str, name: str, results: Path = RESULTS
) -> Path:
    """Write `report` to bench/results/DATE-MACHINE/NAME; return its path."""
    machine = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    path = results / f"{date}-{machine}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(in_rows(report))
    return path
