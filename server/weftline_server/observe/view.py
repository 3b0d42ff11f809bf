"""What GET /v1/session/{id}/graph shows: calls, variables, edges, and where every second went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftline.protocol import Message, Segment
from weftline_server.graph.primitive import Task
from weftline_server.lowering.call import call_of
from weftline_server.schedule.engines.slot import Slot
from weftline_server.session.session import Session
from weftline_server.session.task import Step, TaskRun


def graph_view(session: Session, engines: Sequence[Slot] = ()) -> dict[str, Any]:
    """JSON data. Times are seconds since the session was opened, durations seconds.

    `engines` are told with what they cannot do, so that a reader knows what to expect of a call.
    """
    producer, consumers = _producers(session), _readers(session)
    return {
        "session_id": session.id,
        "calls": [_call(session, run) for run in session.tasks.values()],
        "variables": [
            {
                "semantic_var_id": variable.id,
                "state": variable.state.value,
                "producer": producer.get(variable.id),
                "consumers": list(consumers.get(variable.id, ())),
                "criteria": session.execution.planning.criteria.get(variable.id),
                "chars": len(variable.text),
                "client_reads": variable.reads,
            }
            for variable in session.variables.values()
        ],
        "engines": [
            {
                "name": slot.name,
                "state": slot.state.value,
                "model": slot.description.model,
                "node": slot.node,
                "lacks": list(slot.description.lacking),
            }
            for slot in engines
            if slot.description is not None
        ],
        "edges": [
            {"from": producer[var], "to": call, "semantic_var_id": var}
            for var, readers in consumers.items()
            if var in producer
            for call in readers
        ],
    }


def _producers(session: Session) -> dict[str, str]:
    """Variable → the call that writes it."""
    primitives = session.graph.primitives
    return {var: primitives[id].task for var, id in session.graph.producer.items()}


def _readers(session: Session) -> dict[str, list[str]]:
    """Variable → the calls that read it, or whose prompts were sent with text of it."""
    readers: dict[str, list[str]] = {}
    for id, task in session.graph.tasks.items():
        for var in task.reads:
            readers.setdefault(var, []).append(id)
    for id, task in session.graph.tasks.items():
        call = call_of(task)
        said = [*(p.from_var for p in call.placeholders), *(s.from_var for s in call.segments())]
        for var in dict.fromkeys(var for var in said if var is not None):
            if id not in (known := readers.setdefault(var, [])):
                known.append(id)
    return readers


def _call(session: Session, run: TaskRun) -> dict[str, Any]:
    plan, first, last = session.plan, run.primitives[0].id, run.primitives[-1].id
    steps = [_step(session, step) for step in run.steps]
    total = {
        name: sum(step[name] or 0 for step in steps)
        for name in (*_DURATIONS, "prompt_tokens", "cached_tokens", "output_tokens")
    }
    return {
        "call_id": run.task.id,
        "name": run.task.name,
        "model": run.task.resource,
        "state": run.state.value,
        "template": _template(run.task),
        "inputs": list(run.task.reads),
        "outputs": list(run.task.writes),
        "depth": plan.depth.get(first),
        "objective": plan.objective.get(first),
        "group": plan.group.get(first),
        "prefix_hashes": list(plan.prefixes.get(last, ())),
        "engine": run.steps[-1].engine if run.steps else None,
        "node": run.steps[-1].node if run.steps else "",
        "error": None if run.error is None else run.error.to_body()["error"],
        "submitted_s": run.submitted - session.opened,
        **total,
        "computed_tokens": total["prompt_tokens"] - total["cached_tokens"],
        "steps": steps,
    }


# As much of a constant text as tells a reader which template it is.
_SHOWN = 240


def _template(task: Task) -> str:
    """The call's prompt with its inputs and outputs by name, long constants cut short."""
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


def _step(session: Session, step: Step) -> dict[str, Any]:
    """One output: queued → started (its first step in the engine) → filled → finished."""
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
        "fill_s": step.fill_s,
        "generate_s": step.generate_s,
        "transform_s": step.transform_s,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "finish_reason": None if step.reason is None else step.reason.value,
        "engine": step.engine,
        "node": step.node,
    }
