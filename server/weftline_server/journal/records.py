"""A session's events as versioned JSON, and back. Nothing is pickled, and no code is stored.

Only events that change what a session is are recorded; the text of a running call, the readers and
what placement weighed are not. A record holds times of the wall clock, since each run of the server
has a monotonic clock of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Call
from weftline.contract.steps import Step
from weftline.contract.vectors import as_json
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.primitive import Effects, Task
from weftline_server.lowering.control.sides import after
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.lowering.kinds.tool import ToolBody, of_request, task_of_tool
from weftline_server.lowering.kinds.turn import AgentSetup, as_turn
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

VERSION = 1

_CALL: TypeAdapter[Call] = TypeAdapter(Call)
_STEP: TypeAdapter[Step] = TypeAdapter(Step)
_RUN: TypeAdapter[AgentSetup] = TypeAdapter(AgentSetup)

_USAGE = tuple(one.name for one in fields(Usage))

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock's time at zero of this run's monotonic clock.

    A time later than `now` comes from a wall clock that has been set back since: it is `now`.
    """

    offset: float
    now: float = float("inf")

    def wall(self, at: float) -> float:
        return at + self.offset

    def here(self, wall: float) -> float:
        """The monotonic time of a wall clock's time."""
        return min(float(wall) - self.offset, self.now)


@dataclass(frozen=True, slots=True)
class Noted:
    """An event to record, with what the session knew of its primitive when it was handled.

    Values are never changed once they are set, so a thread may turn this into JSON later.
    """

    event: ev.SessionEvent
    tokens: int = 0
    attempt: int = 0
    text: str | None = None  # the generated text, where it is not the value
    sent: tuple[float, str, str] | None = None  # when, the engine, its machine


def noted(session: ServerSession, event: ev.SessionEvent, actions: list[ev.Action]) -> Noted | None:
    """What is recorded of an event that the session has just handled; None for nothing."""
    match event:
        case ev.PrimitiveFinished():
            return _end(session, event, actions)
        case ev.PrimitiveFailed():
            run = session.primitives.get(event.primitive)
            return None if run is None else Noted(event, tokens=run.tokens)
        case ev.ReaderClosed():
            ended = tuple(action.task for action in actions if isinstance(action, ev.Ended))
            return Noted(ev.TasksAbandoned(now=event.now, tasks=ended)) if ended else None
        case ev.PrimitivePrepared():  # it is recorded with the end, unless it is the end
            ends = any(isinstance(action, ev.Ended) for action in actions)
            return Noted(event) if ends else None
        case ev.PrimitiveSent():
            return None
    return Noted(event) if type(event) in _WRITERS else None


def _end(
    session: ServerSession, event: ev.PrimitiveFinished, actions: list[ev.Action]
) -> Noted | None:
    run = session.primitives.get(event.primitive)
    if run is None or run.step is None:
        return None
    # What a step adds to the graph may fail at once, and the step with it: it does not finish then.
    if run.step.finished != event.now and ev.Ended(run.task.task.id) not in actions:
        return None  # the news was late
    writes = session.graph.primitives[run.id].writes
    variable = session.variables[writes[0]]
    text = variable.text if variable.text != event.value else None
    step = run.step
    sent = None if step.sent is None else (step.sent, step.engine or "", step.node)
    return Noted(event, run.tokens, variable.attempt, text, sent)


def encode(one: Noted, clock: Clock) -> bytes:
    name, write = _WRITERS[type(one.event)]
    body = {"v": VERSION, "e": name, "t": clock.wall(one.event.now), **write(one, clock)}
    return json.dumps(body, separators=(",", ":"), default=as_json).encode()


def decode(data: bytes, clock: Clock) -> Iterator[ev.SessionEvent]:
    """The events of a record: several where one record stands for a call from start to end.

    Raises ValueError for a record of a later version.
    """
    body = json.loads(data)
    if body["v"] != VERSION:
        raise ValueError(f"a record of version {body['v']}, and this program reads {VERSION}")
    return _READERS[body["e"]](body, clock.here(body["t"]), clock)


def _write_submitted(one: Noted, clock: Clock) -> Json:
    assert isinstance(one.event, ev.TasksSubmitted)
    return {"tasks": [_task(task) for task in one.event.tasks], "detach": one.event.detach}


def _task(task: Task) -> Json:
    others = [id for id in task.primitives[0].after if not id.startswith(f"{task.id}/")]
    return _said(task) | ({"after": others} if others else {})


def _said(task: Task) -> Json:
    if task.call is not None:
        call = _CALL.dump_python(task.call, mode="json", by_alias=True, exclude_defaults=True)
        return {"id": task.id, "call": call}
    (first, *_) = task.primitives
    if isinstance(first.body, ToolBody):
        body = first.body
        tool = {"name": body.tool, "arguments": body.arguments, "effects": first.effects.value}
        return {"id": task.id, "tool": tool, "resource": first.resource, "writes": first.writes}
    assert task.step is not None, f"{task.id} is neither a call nor a step nor a tool"
    batch = None if first.items is None else first.items.batch
    step = _STEP.dump_python(task.step, mode="json", by_alias=True)  # its kind is a default
    return {"id": task.id, "step": step, "resource": task.resource, "batch": batch}


def _read_task(body: Json) -> Task:
    return after(_read_said(body), body.get("after", ()))


def _read_said(body: Json) -> Task:
    if "call" in body:
        task = task_of(body["id"], _CALL.validate_python(body["call"]))
        run = body.get("agent")  # before agents of chats were steps
        return task if run is None else as_turn(task, _RUN.validate_python(run), KINDS)
    if "tool" in body:
        return _tool(body)
    step = _STEP.validate_python(body["step"])
    return replace(KINDS.lower_step(step, body["resource"], body["id"], body["batch"]), step=step)


def _tool(body: Json) -> Task:
    tool = body["tool"]
    called = ToolBody(tool["name"], tool["arguments"], False)
    effects, writes = Effects(tool["effects"]), tuple(body["writes"])
    return of_request(task_of_tool(body["id"], body["resource"], called, effects, writes))


def _read_submitted(body: Json, at: float, clock: Clock) -> Iterator[ev.SessionEvent]:
    tasks = tuple(map(_read_task, body["tasks"]))
    yield ev.TasksSubmitted(now=at, tasks=tasks, detach=body["detach"])


def _write_finished(one: Noted, clock: Clock) -> Json:
    event = one.event
    assert isinstance(event, ev.PrimitiveFinished)
    body: Json = {"p": event.primitive, "reason": event.reason.value, "value": event.value}
    if event.usage is not None:
        used = {name: getattr(event.usage, name) for name in _USAGE}
        times = {name: clock.wall(used[name]) for name in ("started", "filled")}
        body["usage"] = used | times
    if one.sent is not None:
        body["sent"] = [clock.wall(one.sent[0]), *one.sent[1:]]
    if event.error is not None:
        body["error"] = _error(event.error)
    optional = {"tokens": one.tokens, "attempt": one.attempt, "transform_s": event.transform_s}
    body |= {name: value for name, value in optional.items() if value}
    return body if one.text is None else body | {"text": one.text}


def _read_finished(body: Json, at: float, clock: Clock) -> Iterator[ev.SessionEvent]:
    id = body["p"]
    yield from _charged(body, at)
    if "sent" in body:
        when, engine, node = body["sent"]
        yield ev.PrimitiveSent(now=clock.here(when), primitive=id, engine=engine, node=node)
    if attempt := body.get("attempt"):
        yield ev.PrimitiveRestarted(now=at, primitive=id, attempt=attempt)
    if body.get("text"):
        yield ev.TextGenerated(now=at, primitive=id, text=body["text"])
    usage = body.get("usage")
    if usage is not None:
        times = {name: clock.here(usage[name]) for name in ("started", "filled")}
        usage = Usage(**{**usage, **times})
    error = body.get("error")
    yield ev.PrimitiveFinished(
        now=at,
        primitive=id,
        reason=FinishReason(body["reason"]),
        value=body["value"],
        usage=usage,
        error=None if error is None else _read_error(error),
        transform_s=body.get("transform_s", 0.0),
    )


def _charged(body: Json, at: float) -> Iterator[ev.SessionEvent]:
    if tokens := body.get("tokens"):
        yield ev.PrimitivePrepared(now=at, primitive=body["p"], tokens=tokens)


def _write_failed(one: Noted, clock: Clock) -> Json:
    assert isinstance(one.event, ev.PrimitiveFailed)
    body = {"p": one.event.primitive, "tokens": one.tokens, "error": _error(one.event.error)}
    return {**body, "taken": True} if one.event.is_taken else body


def _read_failed(body: Json, at: float, clock: Clock) -> Iterator[ev.SessionEvent]:
    yield from _charged(body, at)
    yield ev.PrimitiveFailed(
        now=at,
        primitive=body["p"],
        error=_read_error(body["error"]),
        is_taken=body.get("taken", False),
    )


def _error(error: WeftlineError) -> Json:
    found: Json = error.to_body()["error"]
    return found


def _read_error(body: Json) -> WeftlineError:
    return WeftlineError.from_body({"error": body}, 500)


_Write = Callable[[Noted, Clock], Json]
_Read = Callable[[Json, float, Clock], Iterator[ev.SessionEvent]]


def _plain(kind: type[ev.SessionEvent], *fields: str) -> tuple[_Write, _Read]:
    """How an event is written and read whose fields are JSON already."""

    def write(one: Noted, clock: Clock) -> Json:
        return {name: getattr(one.event, name) for name in fields}

    def read(body: Json, at: float, clock: Clock) -> Iterator[ev.SessionEvent]:
        given = {name: body[name] for name in fields}
        given |= {name: tuple(given[name]) for name in _LISTS & given.keys()}
        yield kind(now=at, **given)

    return write, read


def _write_refused(one: Noted, clock: Clock) -> Json:
    assert isinstance(one.event, ev.VariableRefused)
    return {"variable": one.event.variable, "error": _error(one.event.error)}


def _read_refused(body: Json, at: float, clock: Clock) -> Iterator[ev.SessionEvent]:
    error = _read_error(body["error"])
    yield ev.VariableRefused(now=at, variable=body["variable"], error=error)


_LISTS = frozenset({"items", "tasks"})

# The name of an event in a record, and how it is written and read. A name is never used again for
# anything else: a store outlives many versions of this program.
_KINDS: Mapping[type[ev.SessionEvent], tuple[str, tuple[_Write, _Read]]] = MappingProxyType(
    {
        ev.TasksSubmitted: ("submitted", (_write_submitted, _read_submitted)),
        ev.VariableSet: ("set", _plain(ev.VariableSet, "variable", "value")),
        ev.VariableRefused: ("refused", (_write_refused, _read_refused)),
        ev.VariableCancelled: ("unwanted", _plain(ev.VariableCancelled, "variable")),
        ev.TaskCancelled: ("cancelled", _plain(ev.TaskCancelled, "task")),
        ev.TasksAbandoned: ("abandoned", _plain(ev.TasksAbandoned, "tasks")),
        ev.PrimitivePrepared: ("prepared", _plain(ev.PrimitivePrepared, "primitive", "tokens")),
        ev.PrimitiveSent: ("begun", _plain(ev.PrimitiveSent, "primitive", "engine")),
        ev.PrimitiveFinished: ("finished", (_write_finished, _read_finished)),
        ev.PrimitiveFailed: ("failed", (_write_failed, _read_failed)),
        ev.ItemsCame: ("items", _plain(ev.ItemsCame, "primitive", "offset", "items")),
        ev.SessionResumed: ("resumed", _plain(ev.SessionResumed, "attempt")),
        ev.SessionClosed: ("closed", _plain(ev.SessionClosed, "reason")),
    }
)
_WRITERS = {kind: (name, pair[0]) for kind, (name, pair) in _KINDS.items()}
_READERS = {name: pair[1] for name, pair in _KINDS.values()}
