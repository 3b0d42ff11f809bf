"""Tables in Markdown, and the cells that they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]

NOTHING = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table, or a sentence where there are no rows."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    if not lines:
        return "Not measured on this machine."
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines])


def number(found: Mapping[str, Any]) -> str:
    """A median with its unit."""
    return f"{found['median']:.3g} {found['unit']}"


def spread(found: Mapping[str, Any], unit: str = "") -> str:
    """A median, with its quartiles if it is of several repetitions."""
    quartiles = f" ({found['low']:.2f} to {found['high']:.2f})" if found["n"] > 1 else ""
    return f"{found['median']:.2f}{unit}{quartiles}"


def kind(report: Report) -> str:
    """The GPUs of a report's machine, or else its CPU, and its instructions."""
    machine = report["machine"]
    if machine.get("gpus"):
        return ", ".join(machine["gpus"])
    if machine.get("held_to_avx2"):
        return f"{machine['cpu']} held to AVX2"
    bf16 = "with" if machine["bf16_instructions"] else "without"
    return f"{machine['cpu']} {bf16} bfloat16 instructions"
