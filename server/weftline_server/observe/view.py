"""A session as JSON for its users: its values, its events, its graph with every phase's seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weftline.contract.protocol import Message, Segment
from weftline_engine import api
from weftline_server.graph.primitive import Task
from weftline_server.lowering.control.branch import TakeBody
from weftline_server.lowering.control.each import GatherBody
from weftline_server.lowering.kinds.prompt import call_of
from weftline_server.observe.client_tools import tool_view
from weftline_server.observe.critical import critical_parts
from weftline_server.observe.edges import Links, note_links
from weftline_server.observe.parts import Parts, in_parts, whole
from weftline_server.observe.placement_view import placement_view
from weftline_server.observe.snapshot import Seen, Snapshot
from weftline_server.runtime.service import EngineStatus
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes, TaskRun


def story_view(session: ServerSession) -> list[dict[str, Any]]:
    """The session's newest events, oldest first; `t` is seconds since the session was opened."""
    return [
        {
            "n": line.number,
            "t": line.at_s,
            "event": line.event,
            "about": line.about,
            "text": line.text,
        }
        for line in session.story()
    ]


def output_step(session: ServerSession, variable: str) -> PrimitiveTimes | None:
    """The step that generates `variable`; None if a client sets it, or if it has not begun."""
    primitive = session.graph.producer.get(variable)
    return None if primitive is None else session.primitives[primitive].step


def value_view(session: ServerSession, variable: str) -> dict[str, Any]:
    """The value of a ready variable, and how it was generated unless the client has set it."""
    return whole(value_parts(session, variable))


def value_parts(
    session: ServerSession, variable: str, thoughts: Mapping[str, int] = MappingProxyType({})
) -> Parts:
    """What `value_view` gives, in parts. A ready variable does not change while they are made. Of
    some variables the tokens of the `thoughts` were counted."""
    yield "semantic_var_id", variable
    yield "value", session.variable(variable).value
    yield from _made(session, variable, thoughts)
    if tokens := thoughts.get(variable):
        yield "reasoning_tokens", tokens


def items_of(session: ServerSession, variable: str) -> Sequence[str | None]:
    """The variables of the items of a list that an `each` has made; none for another value."""
    primitive = session.graph.producer.get(variable)
    body = None if primitive is None else session.graph.primitives[primitive].body
    return body.sources(session.variables) if isinstance(body, GatherBody) else ()


def _made(session: ServerSession, variable: str, thoughts: Mapping[str, int]) -> Parts:
    """How a ready variable was generated.

    The value of a branch is made by the call that it took, whose variable is `taken`. For the list
    of an `each`, `items` has the variable of each item and how that was made, and None for an item
    that failed.
    """
    if output_step(session, variable) is None:
        return
    primitive = session.graph.primitives[session.graph.producer[variable]]
    task = session.primitives[primitive.id].task.task
    if task.call is not None:
        yield from _generated(session, task, variable).items()
        return
    match primitive.body:
        case TakeBody(side=side) if side:
            yield "taken", side
            inner = _made(session, side, thoughts)
            yield from (part for part in inner if part is None or part[0] != "step_id")
        case GatherBody():
            listed = primitive.body.sources(session.variables)
            yield from in_parts("items", (_item(session, one, thoughts) for one in listed))
    yield "step_id", task.id


def _item(
    session: ServerSession, variable: str | None, thoughts: Mapping[str, int]
) -> dict[str, Any] | None:
    if variable is None:
        return None
    made = whole(_made(session, variable, thoughts))
    tokens = thoughts.get(variable)
    beside = {"reasoning_tokens": tokens} if tokens else {}
    return {"semantic_var_id": variable, **made, **beside}


def _generated(session: ServerSession, task: Task, variable: str) -> dict[str, Any]:
    step = output_step(session, variable)
    assert step is not None and step.reason is not None, "a ready output has finished"
    found: dict[str, Any] = {"call_id": task.id, "model": task.resource}
    if (usage := step.usage) is not None:  # an answer that a tool has refused has none
        found["prompt_tokens"] = usage.prompt_tokens
        found["cached_tokens"] = usage.cached_tokens
        found["output_tokens"] = usage.output_tokens
    if step.thoughts:
        found["reasoning_content"] = "".join(step.thoughts)
    return {**found, "finish_reason": step.reason.value}


def graph_view(
    session: ServerSession, engines: Sequence[EngineStatus] = (), *, whole_server: bool = False
) -> dict[str, Any]:
    """The session's graph at once; see `graph_parts`."""
    return whole(graph_parts(Snapshot(session), engines, whole_server=whole_server))


def graph_parts(
    session: Snapshot, engines: Sequence[EngineStatus] = (), *, whole_server: bool = False
) -> Parts:
    """The session's graph. Times are seconds since the session was opened, durations seconds.

    `engines` appear with the capabilities that they lack, which explain the calls' times. A reader
    who may see the `whole_server` also gets the engines' loads when calls were placed.
    """
    yield "session_id", session.id
    yield from session.restore()
    links = Links()
    yield from note_links(session, links)
    runs = session.tasks.values()
    calls = (
        {**task_view(session, run), "placement": placement_view(run, whole_server)}
        for run in runs
        if run.task.call
    )
    yield from in_parts("calls", calls)
    yield from in_parts("steps", (task_view(session, run) for run in runs if not run.task.call))
    variables = (
        {
            "semantic_var_id": variable.id,
            "state": variable.state.value,
            "producer": links.producer.get(variable.id),
            "consumers": links.readers.get(variable.id, []),
            "criteria": session.plan.criteria.get(variable.id),
            "chars": variable.chars,
            "client_reads": variable.reads,
        }
        for variable in session.variables
    )
    yield from in_parts("variables", variables)
    yield (
        "engines",
        [
            {
                "name": engine.name,
                "state": engine.state.value,
                "model": engine.model,
                "node": engine.node,
                "lacks": list(engine.lacks),
            }
            for engine in engines
            if engine.model is not None
        ],
    )
    yield from in_parts("tools", (tool_view(session, tool) for tool in links.tools))
    yield from in_parts("edges", links.views())
    yield from critical_parts(session, links)


def task_view(session: Seen, run: TaskRun) -> dict[str, Any]:
    """A call with the times of its outputs, or a step of another kind."""
    return _call(session, run) if run.task.call else _other(session, run)


def _call(session: Seen, run: TaskRun) -> dict[str, Any]:
    plan, first, last = session.plan, run.primitives[0].id, run.primitives[-1].id
    steps = [_step(session, step) for step in run.steps]
    total = {name: sum(step[name] or 0 for step in steps) for name in (*_DURATIONS, *api.COUNTS)}
    asked = session.graph.tasks[run.task.owner] if run.task.owner else run.task
    return {
        "call_id": run.task.id,
        "owner": run.task.owner or None,
        "name": run.task.name,
        "model": run.task.resource,
        "state": run.state.value,
        "template": _template(run.task),
        "inputs": list(run.task.reads),
        "outputs": list(run.task.writes),
        "restored_thoughts": asked.restored_thoughts,
        "depth": plan.depth.get(first),
        "objective": plan.objective.get(first),
        "group": plan.group.get(first),
        "prefix_hashes": list(plan.prefixes.get(last, ())),
        "engine": run.steps[-1].engine if run.steps else None,
        "node": run.steps[-1].node if run.steps else "",
        "error": None if run.error is None else run.error.to_body()["error"],
        "submitted_s": run.submitted - session.opened,
        "ended_s": _ended(session, run),
        **total,
        "computed_tokens": total["prompt_tokens"] - total["cached_tokens"],
        "steps": steps,
    }


def _ended(session: Seen, run: TaskRun) -> float | None:
    """When the task was done, failed, cancelled or skipped."""
    return None if run.live or run.ended is None else run.ended - session.opened


def _other(session: Seen, run: TaskRun) -> dict[str, Any]:
    """A task that is no call: an embed, a search or another step, without its values."""
    primitive = run.task.primitives[0]
    step = run.steps[-1] if run.steps else None
    usage = None if step is None else step.usage

    def since_open(moment: float | None) -> float | None:
        return None if moment is None else moment - session.opened

    return {
        "step_id": run.task.id,
        "owner": run.task.owner or None,
        "kind": primitive.kind,
        "name": run.task.name,
        "resource": run.task.resource,
        "effects": primitive.effects.value,
        "state": run.state.value,
        "inputs": list(run.task.reads),
        "outputs": list(run.task.writes),
        "depth": session.plan.depth.get(primitive.id),
        "objective": session.plan.objective.get(primitive.id),
        "engine": None if step is None else step.engine,
        "finish_reason": None if step is None or step.reason is None else step.reason.value,
        "error": None if run.error is None else run.error.to_body()["error"],
        "submitted_s": run.submitted - session.opened,
        "ended_s": _ended(session, run),
        "queued_s": None if not run.steps else since_open(run.steps[0].queued),
        "started_s": None if usage is None else since_open(usage.started),
        "finished_s": None if step is None else since_open(step.finished),
    }


_SHOWN = 240  # characters of a constant text, enough to recognise its template


def _template(task: Task) -> str:
    """The call's prompt with its inputs and outputs by name, and with long constants cut."""
    lines: list[str] = []
    for item in call_of(task).prompt:
        assert not isinstance(item, str), "template text is parsed when it arrives"
        segments = item.content if isinstance(item, Message) else (item,)
        text = "".join(map(_shown, segments))
        lines.append(f"{item.role}: {text}\n" if isinstance(item, Message) else text)
    return "".join(lines)


def _shown(segment: Segment) -> str:
    if segment.text is None:
        way, name = ("input", segment.input) if segment.input else ("output", segment.output)
        return f"{{{{{way}:{name}}}}}"
    return segment.text if len(segment.text) <= _SHOWN else f"{segment.text[:_SHOWN]}…"


_DURATIONS = ("queue_s", "fill_s", "generate_s", "transform_s")


def _step(session: Seen, step: PrimitiveTimes) -> dict[str, Any]:
    """One output's times: queued, started (its first step in the engine), filled, finished."""
    usage = step.usage
    started = None if usage is None else usage.started
    filled = None if usage is None else usage.filled

    def since_open(moment: float | None) -> float | None:
        return None if moment is None else moment - session.opened

    return {
        "queued_s": since_open(step.queued),
        "sent_s": since_open(step.sent),
        "started_s": since_open(started),
        "filled_s": since_open(filled),
        "finished_s": since_open(step.finished),
        "filled_early": started is not None and started < step.queued,
        "queue_s": step.queue_s,
        "kv_s": step.kv_s,
        "fill_s": step.fill_s,
        "generate_s": step.generate_s,
        "transform_s": step.transform_s,
        **{name: getattr(usage, name) if usage else None for name in api.COUNTS},
        "finish_reason": None if step.reason is None else step.reason.value,
        "engine": step.engine,
        "node": step.node,
    }
