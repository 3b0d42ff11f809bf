"""Continues from earlier raw runs, so that a long measurement can be taken in parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.runs import Run, run_from
from weftline.errors import InvalidRequest

# These must be equal for two parts to be one measurement. The commit is not among them, because
# results and documentation are committed, too: `source` is the hash of the code.
OF_THE_REPORT = ("scale", "model", "dtype", "vllm_dtype", "kv_tokens")
OF_THE_MACHINE = ("cpu", "server_cores", "client_cores", "versions", "source")


@dataclass(frozen=True, slots=True)
class Kept:
    """The runs of an earlier part, and what was measured before them."""

    runs: Sequence[Run]
    prepared: Mapping[str, float]
    repeated: float | None
    seconds: float
    report: Mapping[str, Any]


def kept(path: Path, report: Mapping[str, Any]) -> tuple[Kept | None, str]:
    """The earlier runs in `path` that the new `report` can continue, or None and the reason.

    Raises InvalidRequest if `path` holds runs of other systems, which would be lost.
    """
    if not path.exists():
        return None, ""
    old = json.loads(path.read_text())
    if list(old["systems"]) != list(report["systems"]):
        raise InvalidRequest(
            f"{path.name} holds {', '.join(old['systems'])}: go on with the same systems, or give "
            "another --folder, or leave out --resume to take it anew"
        )
    differ = [name for name in OF_THE_REPORT if old.get(name) != report[name]]
    machine = report["machine"]
    differ += [n for n in OF_THE_MACHINE if old["machine"].get(n) != machine[n]]
    if differ:
        return None, f"{path.name} is taken anew: it was of another {', '.join(differ)}"
    runs = [run_from(one) for one in old["runs"]]
    return Kept(runs, old["prepared"], old["repeated_tokens"], old["seconds"], old), ""


def of_these_sources(path: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `path` holds if it is of the CPU and the sources of the machine `about`."""
    if not path.is_file():
        return None
    old: dict[str, Any] = json.loads(path.read_text())
    if all(old["machine"][name] == about[name] for name in ("cpu", "source")):
        return old
    print(f"{path.name} is taken anew: it is of another CPU or of other sources")
    return None
