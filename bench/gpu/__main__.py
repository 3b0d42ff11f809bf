"""Checks the kernels on a CUDA device, and measures attention, steps and swaps.

    PYTHONPATH=client:server:engine:kernels:. python -m bench.gpu [--dry-run] [PART ...]

It needs only torch and triton. Each part runs in a process of its own, and ends after its time. Its
rows are written to bench/results/DATE-MACHINE/gpu.json as they come, so that what was measured is
there whatever fails. `--dry-run` runs every part on the CPU in Triton's interpreter, at shapes
whose times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything that imports a kernel

import torch
import triton

from bench.gpu import attention, prefix, steps
from bench.gpu.results import RESULTS, write
from tests.gpu import checks
from tests.kernels.hashes import kernel_hashes

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the measurement: its rows, and after how many seconds it is stopped."""

    rows: Callable[[torch.device, bool], Iterator[Row]]
    limit_s: float


def checked(device: torch.device, dry: bool) -> Iterator[Row]:
    """Every kernel against its reference. A dry run leaves attention to the tests."""
    if dry:
        checks.CHECKS = {
            name: check for name, check in checks.CHECKS.items() if "attention" not in name
        }
    return checks.run(device, (torch.float32,) if dry else tuple(checks.TOLERANCE))


# The cheapest and most telling come first. On an H200 they took 5, 17, 9, 12 and 5 s.
PARTS = {
    "checks": Part(checked, 120),
    "steps": Part(steps.rows, 200),
    "attention": Part(attention.rows, 60),
    "prefix": Part(prefix.rows, 60),
    "swaps": Part(steps.swaps, 60),
}


def main() -> None:
    """Run the parts one after the other, and write what they find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--folder", type=Path, help="folder of the results; a dry run writes none")
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)  # a part's own process
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args()
    dry: bool = options.dry_run
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not dry and not torch.cuda.is_available():
        sys.exit("no CUDA device here: run this on a machine with one, or with --dry-run")
    if options.only:
        for row in PARTS[options.only].rows(torch.device("cpu" if dry else "cuda"), dry):
            print(json.dumps(row), flush=True)
        return
    report: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU, interpreted" if dry else torch.cuda.get_device_name(),
        "commit": _commit(),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "kernels": kernel_hashes(),
    }
    folder = options.folder or (None if dry else RESULTS)

    def save() -> None:
        if folder is not None:
            write(report, str(report["date"]), str(report["device"]), "gpu.json", folder)

    for name in options.parts or PARTS:
        found: dict[str, object] = {"rows": []}
        report[name] = found
        _measure(name, dry, found, save)
    if not dry and folder is not None:
        print(f"written to {folder}", file=sys.stderr)
    if wrong := _wrong(report):
        sys.exit(f"not as it should be: {', '.join(wrong)}")


def _measure(name: str, dry: bool, found: dict[str, object], save: Callable[[], None]) -> None:
    """Run a part in a process, and add its rows to `found` as they come."""
    command = [sys.executable, "-m", "bench.gpu", "--only", name]
    rows: list[Row] = []
    found["rows"] = rows
    began = time.monotonic()
    process = subprocess.Popen(
        command + ["--dry-run"] * dry, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    stopper = threading.Timer(PARTS[name].limit_s, process.kill)
    stopper.start()
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        if line.startswith("{"):
            rows.append(json.loads(line))
            print(f"{name}: {line.rstrip()}", flush=True)
            save()
    code = process.wait()
    stopper.cancel()
    found["seconds"] = round(time.monotonic() - began, 1)
    late = time.monotonic() - began >= PARTS[name].limit_s
    found["ended"] = "out of time" if late else f"failed with {code}" if code else "complete"
    save()


def _wrong(report: dict[str, object]) -> list[str]:
    """The parts that failed, and the kernels that differ from their references."""
    found = []
    for name in PARTS:
        part = report.get(name)
        if not isinstance(part, dict):
            continue
        if part["ended"] != "complete":
            found.append(f"{name} ({part['ended']})")
        found += [
            f"{row['kernel']} in {row['dtype']}" for row in part["rows"] if row.get("ok") is False
        ]
    return found


def _commit() -> str:
    """The commit of the checkout; empty where there is no git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    main()
