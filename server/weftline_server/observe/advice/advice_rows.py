"""The advice of a tenant as JSON rows, with the lengths of a program's calls where asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline_server.observe.advice.changed_lengths import lengths_view
from weftline_server.observe.advice.program import Finding, Program, Subject
from weftline_server.observe.advice.sentence import sentence
from weftline_server.runtime.service import EngineStatus

MOST = 1000  # rows of a list
_SUMS = ("calls", "times", "lost_tokens", "prompt_tokens", "cached_tokens")


def advice_rows(
    told: Sequence[tuple[Program, Subject, Finding]],
    *,
    values: bool,
    engines: Sequence[EngineStatus] | None = None,
) -> list[dict[str, Any]]:
    """A row for each finding.

    With `values` a row has the texts around the first difference, and the beginning of a
    conversation. The beginning of a template is the program's own text, and is always there. With
    `engines` a row has the lengths of recorded calls, and what a simulation needs of their engine.
    """
    costs = {engine.name: engine_view(engine) for engine in engines or ()}
    rows = []
    for program, subject, finding in told:
        row = {"id": program.id_of(subject), **_row(program, finding, values=values)}
        if engines is not None:
            engine = costs.get(program.engine)
            row["lengths"] = {**lengths_view(program, finding), "engine": engine}
        rows.append(row)
    return rows


def merged_advice(lists: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The advice of several servers as one. Each has seen other calls of a program: their counts
    are added, and the rest is that of the server where the most was lost.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(
        (row for one in lists for row in one["advice"]), key=lambda row: -row["lost_tokens"]
    ):
        first = found.setdefault(row["id"], row)
        if first is not row:
            found[row["id"]] = {**first, **{name: first[name] + row[name] for name in _SUMS}}
    rows = sorted(found.values(), key=lambda row: -row["lost_tokens"])
    repeated = sum(len(one["advice"]) for one in lists) - len(rows)
    return {"advice": rows[:limit], "total": sum(one["total"] for one in lists) - repeated}


def _row(program: Program, finding: Finding, *, values: bool) -> dict[str, Any]:
    first = finding.places[0] if finding.places else None
    extract = finding.extract if values else None
    return {
        "name": program.name,
        "model": program.model,
        "engine": program.engine,
        "is_template": program.is_template,
        "begins": program.begins if program.is_template or values else None,
        "cause": finding.difference.cause.value,
        "message": None if first is None else first.message,
        "role": None if first is None else first.role,
        "variables": [place.name for place in finding.places if place.name],
        "tool": finding.difference.tool,
        "offset": finding.difference.offset,
        "calls": program.calls,
        "times": finding.times,
        "lost_tokens": finding.lost,
        "prompt_tokens": program.prompt_tokens,
        "cached_tokens": program.cached_tokens,
        "before": None if extract is None else extract.before,
        "after": None if extract is None else extract.after,
        "says": sentence(program, finding),
    }


def engine_view(engine: EngineStatus) -> dict[str, Any]:
    """What a simulation of the engine needs. What was not measured is None."""
    costs = engine.kv_costs
    return {
        "kv_tokens": engine.kv_tokens,
        "step_s": None if costs is None else costs.step_s,
        "fill_s": None if costs is None else costs.fill_s,
        "chunk": None if costs is None else costs.chunk,
    }
