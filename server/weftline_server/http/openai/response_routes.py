"""Responses that are kept: read, followed, cancelled and deleted, and the items of their input."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest
from weftline_server.http.event_stream import EventStream
from weftline_server.http.openai.background_runs import found_running
from weftline_server.http.openai.kept_items import Order, page
from weftline_server.http.openai.response_record import items_of, kept_response
from weftline_server.http.state import ServerState, Tenant, state_of

router = APIRouter(prefix="/v1/responses", tags=["openai"])

Limit = Annotated[int, Query(ge=1, le=100)]


@router.get("/{response_id}", response_model=None)
async def get_response(
    response_id: str,
    request: Request,
    tenant: Tenant,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """A response as it stands. One in the background can be followed with `stream`."""
    state = state_of(request.app)
    kept = await kept_response(state.kept, tenant, response_id)
    running = await found_running(state, tenant, kept)
    if not stream:
        return JSONResponse(kept["response"] if running is None else running.body)
    if running is None:
        raise InvalidRequest(
            f"the events of response {response_id[:64]!r} are not kept: those of a response in the "
            f"background are, until {state.config.kept.events_s:g} s after its end. Get it without "
            "stream",
            param="stream",
        )
    return EventStream(running.follow(starting_after + 1))


@router.post("/{response_id}/cancel", response_model=None)
async def cancel_response(response_id: str, request: Request, tenant: Tenant) -> dict[str, Any]:
    """Cancel a response in the background. One that has ended stays as it is."""
    state = state_of(request.app)
    kept = await kept_response(state.kept, tenant, response_id)
    if not kept["response"]["background"]:
        raise InvalidRequest(
            "only a response in the background can be cancelled: another one ends when its "
            "connection is closed",
            param="response_id",
        )
    return await _ended(state, tenant, kept)


async def _ended(state: ServerState, tenant: str, kept: dict[str, Any]) -> dict[str, Any]:
    """The response at its end, which is now."""
    running = await found_running(state, tenant, kept)
    if running is None:
        ended: dict[str, Any] = kept["response"]
        return ended
    await running.cancel()
    return running.body


@router.delete("/{response_id}")
async def delete_response(response_id: str, request: Request, tenant: Tenant) -> dict[str, Any]:
    """Delete a response, and cancel it if it runs. Those that continue it cannot go on."""
    state = state_of(request.app)
    kept = await kept_response(state.kept, tenant, response_id)
    await _ended(state, tenant, kept)
    state.background.forget(tenant, response_id)
    await state.kept.change(tenant, response_id, lambda _: None)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    request: Request,
    tenant: Tenant,
    limit: Limit = 20,
    order: Order = Order.DESC,
    after: str | None = None,
) -> dict[str, Any]:
    """The items before the output: those of the responses that it continues, and its input."""
    objects = state_of(request.app).kept
    await kept_response(objects, tenant, response_id)
    *before, last = await objects.chain(tenant, response_id)
    return page([*items_of(before), *last["input"]], order, after, limit)
