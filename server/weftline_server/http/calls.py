"""POST /v1/submit and POST /v1/get: Parrot's two verbs (section 7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.errors import InvalidRequest
from weftline.protocol import Get, Submit
from weftline_server.graph.primitive import Task
from weftline_server.http.deps import ACCEPTING, DriverDep, Tenant
from weftline_server.http.event_stream import EventStream, sse, sse_or_error
from weftline_server.http.state import state_of
from weftline_server.http.watch import watch
from weftline_server.http.wire import or_disconnect, read, schema
from weftline_server.lowering.call import outputs_of
from weftline_server.observe.view import graph_view
from weftline_server.runtime.driver import Driver
from weftline_server.session.session import Session

router = APIRouter(prefix="/v1", tags=["calls"])

RESUME_S = 2.0  # a stream that was cut off is waited for, and its work goes on


@router.post("/submit", dependencies=[ACCEPTING], openapi_extra=schema(Submit), response_model=None)
async def submit(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """Take calls, all or none. Those whose inputs are ready start at once."""
    body = await read(request, Submit)
    config = state_of(request.app).config
    if len(body.calls) > config.max_calls:
        raise InvalidRequest(f"a submit has at most {config.max_calls} calls", param="calls")
    named = body.session_id
    if named is None:
        session = driver.open(tenant, stays=not body.close)
    else:
        session = driver.registry.find(tenant, named)
    # Nobody learns the id of a session that is opened here and fails, so nobody else can close it.
    close = body.close or named is None
    try:
        answer = _submitted(session, await driver.submit(session, body))
        if watched := body.watch if body.stream is None else (body.stream,):
            for variable in watched:
                session.watch.check(variable, wait=False)
            close = False
            return EventStream(sse_or_error(_whole_run(driver, session, body, answer)))
        if body.get:
            answer["values"] = await or_disconnect(request, _values(driver, session, body.get))
        if body.graph:
            answer["graph"] = graph_view(session, driver.dispatcher.slots)
        close = body.close
        return JSONResponse(answer)
    finally:
        if close:
            driver.close(session)


async def _whole_run(
    driver: Driver, session: Session, body: Submit, answer: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """What was submitted, what is streamed or watched of it, and the graph if asked for."""
    try:
        yield sse("submitted", answer)
        if body.stream is None:
            events = watch(driver, session, body.watch, parts=body.parts)
        else:
            get = Get(session_id=session.id, semantic_var_id=body.stream)
            events = _events(driver, session, get, offset=0)
        async with aclosing(events):
            async for event in events:
                yield event
        if body.graph:
            yield sse("graph", graph_view(session, driver.dispatcher.slots))
    finally:
        if body.close:
            driver.close(session)


def _submitted(session: Session, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "calls": [
            {
                "name": task.name,
                "call_id": task.id,
                "outputs": {p.name: p.semantic_var_id for p in outputs_of(task)},
            }
            for task in tasks
        ],
    }


async def _values(driver: Driver, session: Session, variables: Sequence[str]) -> dict[str, Any]:
    """The values of all `variables`; the first failure ends the wait for the others."""
    found = await asyncio.gather(*(driver.readers.get(session, variable) for variable in variables))
    return {variable.id: variable.value for variable in found}


@router.post("/get", openapi_extra=schema(Get), response_model=None)
async def get(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """Wait for a variable; as server-sent events when asked."""
    body = await read(request, Get)
    session = driver.registry.find(tenant, body.session_id)
    if body.stream or "text/event-stream" in request.headers.get("accept", ""):
        # What cannot be waited for is a status, not an event in a stream that began with 200.
        session.watch.check(body.semantic_var_id, body.wait)
        offset = _offset(request.headers.get("last-event-id"))
        return EventStream(sse_or_error(_events(driver, session, body, offset)))
    waiting = driver.readers.get(
        session,
        body.semantic_var_id,
        criteria=body.criteria,
        timeout_s=body.timeout_s,
        wait=body.wait,
    )
    variable = await or_disconnect(request, waiting)
    return JSONResponse(
        {"semantic_var_id": variable.id, "status": "ready", "value": variable.value}
    )


def _offset(last_event_id: str | None) -> int:
    """Where to resume: ids are the character offset after each part."""
    if last_event_id is None:
        return 0
    if not last_event_id.isdecimal() or len(last_event_id) > 12:
        raise InvalidRequest("Last-Event-ID is not one of ours", param="Last-Event-ID")
    return int(last_event_id)


async def _events(
    driver: Driver, session: Session, body: Get, offset: int
) -> AsyncGenerator[bytes, None]:
    """`part` events with the text as it comes, then one `value` event."""
    chunks = driver.readers.stream(
        session,
        body.semantic_var_id,
        offset=offset,
        criteria=body.criteria,
        wait=body.wait,
        grace_s=RESUME_S,
    )
    end = offset
    async for chunk in chunks:
        end = chunk.end
        yield sse("part", {"offset": chunk.offset, "text": chunk.text}, id=str(end))
    variable = session.variable(body.semantic_var_id)
    yield sse("value", {"value": variable.value}, id=str(end))
