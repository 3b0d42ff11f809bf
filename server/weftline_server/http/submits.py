"""POST /v1/submit and POST /v1/get: Parrot's two verbs (section 7)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline.contract.protocol import Criterion, GetBody, SubmitBody
from weftline.contract.vectors import plain
from weftline_server.graph.primitive import Task
from weftline_server.http.criterion_effect import CriterionEffect
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse, sse_or_error
from weftline_server.http.idempotency import key_of
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.openai.runs import Runs
from weftline_server.http.renderings import Held, Renderings
from weftline_server.http.state import GRACE, asking, sees_all, state_of, tenant_of
from weftline_server.http.value_response import ValueResponse, value_event
from weftline_server.http.watch_stream import event_id, leaves, watch
from weftline_server.lowering.bounds import is_small
from weftline_server.lowering.kinds.prompt import outputs_of
from weftline_server.observe.parts import json_text, to_json
from weftline_server.observe.snapshot import Snapshot
from weftline_server.observe.view import graph_parts
from weftline_server.runtime.service import Service, SessionHolds
from weftline_server.session.origin import name_run
from weftline_server.session.session import ServerSession

router = APIRouter(prefix="/v1", tags=["calls"], route_class=Direct)

RESUME_S = 2.0  # seconds that work continues after a stream was cut off
_NUMBER = re.compile("[0-9]+")


@router.post("/submit", openapi_extra=schema(SubmitBody), response_model=None)
async def submit(request: Request) -> Response:
    """Add calls, all or none. Those whose inputs are ready start at once."""
    service, tenant = asking(request)
    body = await read(request, SubmitBody)
    config = state_of(request.app).config
    if len(body.calls) + len(body.steps) > config.max_calls:
        raise InvalidRequest(
            f"a submit has at most {config.max_calls} calls and steps", param="calls"
        )
    name_run(body.run_name)
    runs, key = state_of(request.app).runs, key_of(request)
    earlier = service.earlier(key)
    headers, whole = durability(service), sees_all(request, tenant)
    session = _session(service, runs, tenant, body) if earlier is None else earlier[0]
    # A client does not learn the id of a session that is opened here and fails: it cannot close it.
    close, leaves = body.close or body.session_id is None, body.open and earlier is None
    held = service.lifecycle.holds if key is None else None  # nobody may send it again
    if held is not None:
        held.add(session)
    try:
        tasks = await service.submit(session, body, key) if earlier is None else earlier[1]
        response = _submitted(session, tasks)
        if watched := body.watch if body.stream is None else (body.stream,):
            for variable in watched:
                session.watch.check(variable, wait=body.wait)
            close = leaves = False
            renderings = state_of(request.app).renderings
            events = _whole_run(service, renderings, runs, session, body, response, whole)
            if held is not None:
                events = _held(held, session, events)
            resumed = {} if earlier is None else {"Weftline-Resumed": "true"}
            return EventStream(sse_or_error(events), {**headers, **resumed})
        values: dict[str, Any] = {}
        if body.get:
            reading = _values(service, session, body.get, body.criteria)
            values = await or_disconnect(request, reading)
        graph = await _graph(service, session, whole) if body.graph else ""
        large = await _large(request, session, values)
        close = body.close
        runs.responded(session)
        if large is not None:
            return ValueResponse(large, _with_values(response, values, large, graph), headers)
        small = {name: plain(value) for name, value in values.items()}
        return _answered(response | ({"values": small} if body.get else {}), graph, headers)
    finally:
        if held is not None:
            held.remove(session)
        if leaves:
            runs.leave(session)
        if close:
            service.close(session)


def durability(service: Service) -> dict[str, str]:
    """The header by which clients know that a server goes on with its sessions when it ends."""
    return {} if service.registry.journal is None else {"Weftline-Durable": "true"}


def _session(service: Service, runs: Runs, tenant: str, body: SubmitBody) -> ServerSession:
    """The session that a submit names, or a new one."""
    if body.session_id is None:
        return service.open(tenant, stays=not body.close, alias="")
    if body.open:
        return runs.enter(tenant, body.session_id, opens=True, beats=body.beats)
    return service.registry.find(tenant, body.session_id)


async def _held(
    holds: SessionHolds, session: ServerSession, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream that nobody can resume elsewhere."""
    holds.add(session)
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    finally:
        holds.remove(session)


async def _whole_run(
    service: Service,
    renderings: Renderings,
    runs: Runs,
    session: ServerSession,
    body: SubmitBody,
    response: dict[str, Any],
    whole: bool,
) -> AsyncGenerator[bytes, None]:
    """A `submitted` event, the events of the stream or the watch, and the graph if asked for."""
    try:
        yield sse("submitted", response)
        runs.responded(session)
        if body.stream is None:
            events = watch(service, renderings, session, body)
        else:
            get = GetBody(
                session_id=session.id, semantic_var_id=body.stream, criteria=body.criteria
            )
            events = _events(service, renderings, session, get, offset=0)
        async with aclosing(events):
            async for event in events:
                yield event
        if body.graph:
            yield sse("graph", await _graph(service, session, whole))
    finally:
        if body.open:
            runs.leave(session)
        if body.close:
            service.close(session)


async def _large(request: Request, session: ServerSession, values: dict[str, Any]) -> Held | None:
    """The renderings of the values if any of them is large, as soon as there is room for them."""
    if all(map(is_small, values.values())):
        return None
    renderings, variables = state_of(request.app).renderings, list(values)
    while not renderings.has_room(session, variables):
        await or_disconnect(request, renderings.changed())
    return renderings.enter(session, variables)


def _answered(response: dict[str, Any], graph: str, headers: dict[str, str]) -> Response:
    """The response with the graph, which is JSON, if there is one."""
    if not graph:
        return JSONResponse(response, headers=headers)
    content = f'{to_json(response)[:-1]},"graph":{graph}}}'
    return Response(content, headers=headers, media_type="application/json")


def _with_values(
    response: dict[str, Any], values: dict[str, Any], large: Held, graph: str
) -> Iterator[str]:
    """The response with the values and the graph, as JSON in pieces."""
    yield f'{to_json(response)[:-1]},"values":'
    before = "{"
    for variable in values:
        yield f"{before}{to_json(variable)}:"
        yield from large.pieces(variable)
        before = ","
    yield f'}},"graph":{graph}}}' if graph else "}}"


async def _graph(service: Service, session: ServerSession, whole: bool) -> str:
    """The session's graph at this moment, as JSON."""
    return await json_text(
        graph_parts(Snapshot(session), service.engines.statuses, whole_server=whole)
    )


def _submitted(session: ServerSession, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "calls": [
            {
                "name": task.name,
                "call_id": task.id,
                "outputs": {p.name: p.semantic_var_id for p in outputs_of(task)},
            }
            for task in tasks
            if task.call is not None
        ],
        "steps": [
            {"name": task.name, "step_id": task.id, "out": task.writes[-1]}
            for task in tasks
            if task.call is None
        ],
    }


async def _values(
    service: Service,
    session: ServerSession,
    variables: Sequence[str],
    criteria: Criterion | None,
) -> dict[str, Any]:
    """The values of all `variables`; the first failure ends the wait for the others."""
    wanted = dict.fromkeys(variables)  # each once, however often it is named
    for variable in wanted:
        session.watch.check(variable, wait=False)
    get = partial(service.readers.get, session, criteria=criteria)
    if len(wanted) == 1:  # without a task of its own
        found = [await get(variable) for variable in wanted]
    else:
        found = await asyncio.gather(*map(get, wanted))
    return {variable.id: variable.value for variable in found}


@router.post("/get", openapi_extra=schema(GetBody), response_model=None)
async def get(request: Request) -> Response:
    """Wait for a variable, or stream it as server-sent events."""
    service, tenant = state_of(request.app).service, tenant_of(request)
    body = await read(request, GetBody)
    session = service.registry.find(tenant, body.session_id)
    if body.stream or "text/event-stream" in request.headers.get("accept", ""):
        # A variable that will not come is an error status, not an event after a status of 200.
        session.watch.check(body.semantic_var_id, body.wait)
        since = _since(request.headers.get("last-event-id"))
        renderings = state_of(request.app).renderings
        events = _events(service, renderings, session, body, *since, grace_s=_grace(request))
        return EventStream(sse_or_error(events), durability(service))
    effect = _effect(service, session, body)
    waiting = service.readers.get(
        session,
        body.semantic_var_id,
        criteria=body.criteria,
        timeout_s=body.timeout_s,
        wait=body.wait,
        grace_s=_grace(request),
    )
    variable = await or_disconnect(request, waiting)
    headers = durability(service)
    found: dict[str, Any] = {"semantic_var_id": variable.id, "status": "ready"}
    if effect is not None:
        found["criterion"] = effect.told(session)
    large = await _large(request, session, {variable.id: variable.value})
    if large is not None:
        texts = chain([f'{to_json(found)[:-1]},"value":'], large.pieces(variable.id), "}")
        return ValueResponse(large, texts, headers)
    return JSONResponse({**found, "value": plain(variable.value)}, headers=headers)


def _effect(service: Service, session: ServerSession, body: GetBody) -> CriterionEffect | None:
    if body.criteria is None:
        return None
    return CriterionEffect.of(service, session, body.semantic_var_id)


def _grace(request: Request) -> float:
    """For how many seconds a client that has left may come back."""
    return float(request.scope.get(GRACE, 0.0))


def _since(last_event_id: str | None) -> tuple[int, int]:
    """The offset to resume from, and the attempt whose text the client has: see `event_id`."""
    if last_event_id is None:
        return 0, 0
    attempt, _, offset = last_event_id.rpartition(".")
    fits = len(offset) <= 12 and len(attempt) <= 19
    if not (fits and _NUMBER.fullmatch(offset) and _NUMBER.fullmatch(attempt or "0")):
        raise InvalidRequest(
            "Last-Event-ID must be the id of an earlier event", param="Last-Event-ID"
        )
    return int(offset), int(attempt or 0)


async def _events(
    service: Service,
    renderings: Renderings,
    session: ServerSession,
    body: GetBody,
    offset: int,
    attempt: int = 0,
    grace_s: float = 0.0,
) -> AsyncGenerator[bytes, None]:
    """`part` events with the text as it is generated, then one `value` event. Before that comes a
    `criterion` event, which says what the reader's criterion has changed.

    A client that has the text of an attempt that was lost gets `restarted`, and all of it anew.
    """
    variable = session.variables.get(body.semantic_var_id)
    if offset and variable is not None and variable.attempt != attempt:
        yield sse("restarted", {"semantic_var_id": variable.id}, id=event_id(variable.attempt, 0))
        offset = 0
    effect = _effect(service, session, body)
    chunks = service.readers.stream(
        session,
        body.semantic_var_id,
        offset=offset,
        criteria=body.criteria,
        wait=body.wait,
        grace_s=max(RESUME_S, grace_s),
    )
    end = offset
    try:
        async for chunk in chunks:
            end = chunk.end
            made = session.variable(body.semantic_var_id).attempt
            yield sse("part", {"offset": chunk.offset, "text": chunk.text}, id=event_id(made, end))
    except WeftlineError as error:
        if leaves(service, session.variable(body.semantic_var_id), error):
            return
        raise
    variable = session.variable(body.semantic_var_id)
    place = event_id(variable.attempt, end)
    if effect is not None:
        yield sse("criterion", effect.told(session))
    if is_small(variable.value):
        yield sse("value", {"value": variable.value}, id=place)
        return
    async with aclosing(value_event(renderings, session, variable.id, "{}", place)) as event:
        async for piece in event:
            yield piece
