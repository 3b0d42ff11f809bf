"""A session as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weftline_server.observe.edges import Links, note_links
from weftline_server.observe.parts import Parts, in_parts
from weftline_server.observe.snapshot import Snapshot
from weftline_server.session.task import PrimitiveTimes, TaskRun

_CALLS = 1  # the only process of the trace
_MICRO = 1_000_000


def trace_parts(session: Snapshot) -> Parts:
    """Every task in a row of its own, its phases as slices, and edges as flows between them.

    The time is in microseconds since the session was opened.
    """
    yield "displayTimeUnit", "ms"
    yield from session.restore()
    links = Links()
    yield from note_links(session, links)
    yield from in_parts("traceEvents", _events(session, links))


def _events(session: Snapshot, links: Links) -> Iterator[dict[str, Any]]:
    rows = {id: row for row, id in enumerate(session.tasks, 1)}
    ends: dict[str, tuple[int, float]] = {}
    yield {"ph": "M", "name": "process_name", "pid": _CALLS, "args": {"name": session.id}}
    for id, run in session.tasks.items():
        place = {"pid": _CALLS, "tid": rows[id]}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": run.task.name}}
        for name, start, end, details in _slices(run):
            at = (start - session.opened) * _MICRO
            length = max(0.0, end - start) * _MICRO
            args = {"call": id, **details}
            yield {"ph": "X", "name": name, "ts": at, "dur": length, **place, "args": args}
            ends[id] = (rows[id], at)
    yield from _tools(session, links, len(rows))
    for number, edge in enumerate(links.views(), 1):
        if edge["from"] not in ends or edge["to"] not in ends:
            continue
        flow = {"cat": "value", "name": edge["semantic_var_id"], "id": number, "pid": _CALLS}
        for phase, task in (("s", edge["from"]), ("f", edge["to"])):
            row, at = ends[task]
            binds = {"bp": "e"} if phase == "f" else {}
            yield {"ph": phase, "tid": row, "ts": at, **flow, **binds}


def _tools(session: Snapshot, links: Links, rows: int) -> Iterator[dict[str, Any]]:
    """A row below the tasks for each tool that the client has run."""
    for row, tool in enumerate(links.tools, rows + 1):
        if tool.ended is None:
            continue
        place = {"pid": _CALLS, "tid": row}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": tool.name}}
        at, length = (tool.began - session.opened) * _MICRO, (tool.ended - tool.began) * _MICRO
        args = {"asked_by": tool.asked_by, "read_by": tool.read_by}
        yield {"ph": "X", "name": "tool", "ts": at, "dur": length, **place, "args": args}


Slice = tuple[str, float, float, dict[str, Any]]


def _slices(run: TaskRun) -> Iterator[Slice]:
    for step in run.steps:
        if step.finished is None:
            continue
        if run.task.call is None or step.usage is None:
            yield run.task.name, step.queued, step.finished, {"engine": step.engine}
        else:
            yield from _phases(step)


def _phases(step: PrimitiveTimes) -> Iterator[Slice]:
    usage, finished = step.usage, step.finished
    assert usage is not None and finished is not None, "the output has ended"
    engine = {"engine": step.engine}
    start = max(usage.started, step.queued)
    tokens = {"prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens}
    yield "queue", step.queued, start, engine
    yield "fill", start, max(start, usage.filled), {**engine, **tokens}
    output = {"output_tokens": usage.output_tokens}
    yield "generate", max(start, usage.filled), finished, {**engine, **output}
    if step.transform_s:
        yield "transform", finished, finished + step.transform_s, {}
