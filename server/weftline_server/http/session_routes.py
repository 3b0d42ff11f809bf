"""Sessions: open and close, their graph and events, their variables and calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from weftline.contract.protocol import PROTOCOL_VERSION, OpenSession, SetVariable, check_id
from weftline.contract.vectors import plain
from weftline_server.http.event_stream import EventStream, JsonStream, sse
from weftline_server.http.json_bodies import has_body, read, schema
from weftline_server.http.state import (
    ACCEPTING,
    PricesDep,
    ServiceDep,
    Tenant,
    other_answers,
    sees_all,
    state_of,
)
from weftline_server.http.submits import durability
from weftline_server.observe.chrome_trace import trace_parts
from weftline_server.observe.follower import Follower
from weftline_server.observe.listing import MOST, listing, merged
from weftline_server.observe.parts import texts
from weftline_server.observe.prompt_view import call_view
from weftline_server.observe.search import MAX_TEXT, found_in
from weftline_server.observe.snapshot import Snapshot
from weftline_server.observe.view import graph_parts, story_view
from weftline_server.session.session import ServerSession

router = APIRouter(prefix="/v1/session", tags=["sessions"])
lists = APIRouter(prefix="/v1/sessions", tags=["sessions"])


def _looked(session_id: str, request: Request, tenant: Tenant) -> ServerSession:
    """The session to show. A client may use the id that it chose."""
    return state_of(request.app).runs.look(tenant, session_id)


Looked = Annotated[ServerSession, Depends(_looked)]

FOLLOW_S = 0.25  # between two looks at a session that a page follows


@lists.get("")
async def list_sessions(
    request: Request,
    service: ServiceDep,
    tenant: Tenant,
    prices: PricesDep,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    text: Annotated[str, Query(max_length=MAX_TEXT)] = "",
) -> dict[str, Any]:
    """The tenant's open sessions and those closed a short time ago, the last opened first.

    With `text` only those whose prompts or values contain it, whatever its case: `found` is their
    number, and `all_read` is false where there was too much text to read all of it.
    """
    known = service.registry.listed(tenant)
    found, all_read = await found_in(known, text) if text else (known, True)
    rows = await listing(found[:limit], prices, service.registry.wall)
    mine = {"sessions": rows, "total": len(known), "found": len(found), "all_read": all_read}
    others = await other_answers(request)
    return merged([mine, *others], limit) if others else mine


@router.post("", dependencies=[ACCEPTING], openapi_extra=schema(OpenSession, required=False))
async def open_session(
    request: Request, response: Response, service: ServiceDep, tenant: Tenant
) -> dict[str, str]:
    """Open a session: one run of an application. Without a body the client promises nothing."""
    body = await read(request, OpenSession) if has_body(request) else OpenSession()
    session = service.open(tenant, alias="")
    session.beats = body.beats
    await service.registry.kept(session, strict=True)
    response.headers.update(durability(service))
    return {"session_id": session.id, "protocol": PROTOCOL_VERSION}


@router.delete("/{session_id}")
async def close_session(
    session_id: str, request: Request, service: ServiceDep, tenant: Tenant
) -> dict[str, str]:
    """Cancel what the session runs, and close it. A client may use the id that it chose."""
    session = state_of(request.app).runs.find(tenant, session_id)
    service.close(session)
    await service.registry.kept(session, strict=True)
    return {"session_id": session_id}


@router.post("/{session_id}/heartbeat")
async def heartbeat(session_id: str, request: Request, tenant: Tenant) -> dict[str, str]:
    """Say that the client still wants the session, of which it asks nothing now."""
    session = state_of(request.app).runs.find(tenant, session_id)
    session.heard(time.monotonic())
    return {"session_id": session_id}


@router.get("/{session_id}/graph", response_model=None)
async def get_graph(
    session: Looked, service: ServiceDep, request: Request, tenant: Tenant
) -> JsonStream:
    """Calls, variables, edges, and where every second went, all at one moment."""
    whole = sees_all(request, tenant)
    return JsonStream(
        texts(graph_parts(Snapshot(session), service.engines.statuses, whole_server=whole))
    )


@router.get("/{session_id}/trace", response_model=None)
async def get_trace(session: Looked) -> JsonStream:
    """The session at one moment as a trace in Chrome's JSON format, for Perfetto."""
    return JsonStream(texts(trace_parts(Snapshot(session))))


@router.get("/{session_id}/events")
async def get_events(session: Looked) -> dict[str, Any]:
    """The newest events of the session, oldest first."""
    return {"events": story_view(session)}


@router.get("/{session_id}/call/{call_id}")
async def get_call(
    session: Looked, call_id: str, prices: PricesDep, request: Request, tenant: Tenant
) -> dict[str, Any]:
    """One call: its prompt with the values that stand in it, where its seconds went, and why it
    ran on its engine.
    """
    return call_view(session, call_id, prices, whole=sees_all(request, tenant))


@router.get("/{session_id}/follow", response_model=None)
async def follow(session: Looked, service: ServiceDep, prices: PricesDep) -> EventStream:
    """The session as it changes, as server-sent events, until it is closed: its tasks, its tools,
    its texts while they are written, and the whole at a glance.
    """
    return EventStream(_changes(Follower(session, prices), service.registry.wall))


async def _changes(follower: Follower, wall: float) -> AsyncGenerator[bytes, None]:
    while True:
        for message in follower.changes(time.monotonic(), wall):
            yield sse("changes", message)
            await asyncio.sleep(0)  # a large session is told in many turns of the event loop
        if follower.is_over:
            return
        await asyncio.sleep(FOLLOW_S)


@router.put("/{session_id}/variable/{variable}", openapi_extra=schema(SetVariable))
async def set_variable(
    session_id: str, variable: str, request: Request, service: ServiceDep, tenant: Tenant
) -> dict[str, str]:
    """Give a variable its value, or an error; what waited for it starts, or fails with it."""
    session = service.registry.find(tenant, session_id)
    check_id(variable, "semantic_var_id")
    body = await read(request, SetVariable)
    service.set(session, variable, body)
    await service.registry.kept(session, strict=True)
    return {"semantic_var_id": variable, "status": session.variable(variable).state.value}


@router.delete("/{session_id}/variable/{variable}")
async def cancel_variable(
    session_id: str, variable: str, service: ServiceDep, tenant: Tenant
) -> dict[str, str]:
    """Cancel the call that produces the variable; one that is ready stays."""
    session = service.registry.find(tenant, session_id)
    service.cancel_variable(session, variable)
    await service.registry.kept(session, strict=True)
    return {"semantic_var_id": variable, "status": session.variable(variable).state.value}


@router.delete("/{session_id}/call/{call_id}")
async def cancel_call(
    session_id: str, call_id: str, service: ServiceDep, tenant: Tenant
) -> dict[str, str]:
    """Cancel a call and every call that waits for it; a call that has ended stays as it is."""
    session = service.registry.find(tenant, session_id)
    service.cancel(session, call_id)
    await service.registry.kept(session, strict=True)
    return {"call_id": call_id, "state": session.tasks[call_id].state.value}


@router.get("/{session_id}/variable/{variable}")
async def read_variable(session: Looked, variable: str, service: ServiceDep) -> dict[str, Any]:
    """The present state of a variable, without waiting."""
    found = service.readers.read(session, variable)
    await service.registry.kept(session)
    error = None if found.error is None else found.error.to_body()["error"]
    return {
        "semantic_var_id": variable,
        "status": found.state.value,
        "value": plain(found.value),
        "text": found.text,
        "error": error,
    }
