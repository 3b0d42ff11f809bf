"""The advice of a tenant as JSON rows, and the lengths of a program's calls."""

from __future__ import annotations

from typing import Any

from weftline_server.observe.advice.advisor import Advisor
from weftline_server.observe.advice.program import Finding, Program, Subject
from weftline_server.observe.advice.sentence import sentence


def advice_rows(advisor: Advisor, tenant: str, *, values: bool) -> list[dict[str, Any]]:
    """A row for each finding, those that cost most first.

    With `values` a row has the texts around the first difference, and the beginning of a
    conversation. The beginning of a template is the program's own text, and is always there.
    """
    return [_row(*told, values=values) for told in advisor.told(tenant)]


def _row(program: Program, subject: Subject, found: Finding, *, values: bool) -> dict[str, Any]:
    first = found.places[0] if found.places else None
    extract = found.extract if values else None
    return {
        "id": program.id_of(subject),
        "name": program.name,
        "model": program.model,
        "begins": program.begins if program.is_template or values else None,
        "cause": found.cause.value,
        "message": None if first is None else first.message,
        "role": None if first is None else first.role,
        "variables": [place.name for place in found.places if place.name],
        "tool": found.tool,
        "offset": found.offset,
        "calls": program.calls,
        "times": found.times,
        "lost_tokens": found.lost,
        "prompt_tokens": program.prompt_tokens,
        "cached_tokens": program.cached_tokens,
        "before": None if extract is None else extract.before,
        "after": None if extract is None else extract.after,
        "says": sentence(program, found),
    }
