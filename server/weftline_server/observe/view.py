"""A session as JSON for its users: its values, its events, its graph with every phase's seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftline.protocol import Message, Segment
from weftline_server.graph.graph import Node
from weftline_server.runtime.service import EngineStatus
from weftline_server.session.call import CallRun, Step
from weftline_server.session.session import Session


def story_view(session: Session) -> list[dict[str, Any]]:
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


def output_step(session: Session, variable: str) -> Step | None:
    """The step that generates `variable`; None if a client sets it, or if it has not begun."""
    call = session.graph.producer.get(variable)
    if call is None:
        return None
    run = session.calls[call]
    index = run.node.writes.index(variable)
    return run.steps[index] if index < len(run.steps) else None


def value_view(session: Session, variable: str) -> dict[str, Any]:
    """The value of a ready variable, and how it was generated unless the client has set it."""
    value = {"semantic_var_id": variable, "value": session.variable(variable).value}
    step = output_step(session, variable)
    if step is None:
        return value
    assert step.usage is not None and step.reason is not None, "a ready output has finished"
    call = session.graph.producer[variable]
    return {
        **value,
        "call_id": call,
        "model": session.calls[call].node.call.model,
        "prompt_tokens": step.usage.prompt_tokens,
        "cached_tokens": step.usage.cached_tokens,
        "output_tokens": step.usage.output_tokens,
        "finish_reason": step.reason.value,
    }


def graph_view(session: Session, engines: Sequence[EngineStatus] = ()) -> dict[str, Any]:
    """The session's graph. Times are seconds since the session was opened, durations seconds.

    `engines` appear with the capabilities that they lack, which explain the calls' times.
    """
    producer, consumers = session.graph.producer, _readers(session)
    return {
        "session_id": session.id,
        "calls": [_call(session, run) for run in session.calls.values()],
        "variables": [
            {
                "semantic_var_id": variable.id,
                "state": variable.state.value,
                "producer": producer.get(variable.id),
                "consumers": list(consumers.get(variable.id, ())),
                "criteria": session.planning.criteria.get(variable.id),
                "chars": len(variable.text),
                "client_reads": variable.reads,
            }
            for variable in session.variables.values()
        ],
        "engines": [
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
        "edges": [
            {"from": producer[var], "to": call, "semantic_var_id": var}
            for var, readers in consumers.items()
            if var in producer
            for call in readers
        ],
    }


def _readers(session: Session) -> dict[str, list[str]]:
    """Variable → the calls that read it, or whose prompts came with text of it."""
    readers = {var: list(calls) for var, calls in session.graph.consumers.items()}
    for call, node in session.graph.nodes.items():
        named = [*(p.from_var for p in node.inputs), *(s.from_var for s in node.call.segments())]
        for var in dict.fromkeys(var for var in named if var is not None):
            if call not in (known := readers.setdefault(var, [])):
                known.append(call)
    return readers


def _call(session: Session, run: CallRun) -> dict[str, Any]:
    plan, id = session.plan, run.node.id
    steps = [_step(session, step) for step in run.steps]
    total = {
        name: sum(step[name] or 0 for step in steps)
        for name in (*_DURATIONS, "prompt_tokens", "cached_tokens", "output_tokens")
    }
    return {
        "call_id": id,
        "name": run.node.call.name,
        "model": run.node.call.model,
        "state": run.state.value,
        "template": _template(run.node),
        "inputs": list(run.node.reads),
        "outputs": list(run.node.writes),
        "depth": plan.depth.get(id),
        "objective": plan.objective.get(id),
        "group": plan.group.get(id),
        "prefix_hashes": list(plan.prefixes.get(id, ())),
        "engine": run.steps[-1].engine if run.steps else None,
        "node": run.steps[-1].node if run.steps else "",
        "error": None if run.error is None else run.error.to_body()["error"],
        "submitted_s": run.submitted - session.opened,
        **total,
        "computed_tokens": total["prompt_tokens"] - total["cached_tokens"],
        "steps": steps,
    }


_SHOWN = 240  # characters of a constant text, enough to recognise its template


def _template(node: Node) -> str:
    """The call's prompt with its inputs and outputs by name, and with long constants cut."""
    lines: list[str] = []
    for item in node.call.prompt:
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
