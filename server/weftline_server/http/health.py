"""GET /health/live, GET /health/ready and GET /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline_server.http.deps import DriverDep, Tenant
from weftline_server.http.state import state_of
from weftline_server.schedule.engines.slot import EngineState

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The event loop answers."""
    return {"status": "live"}


@router.get("/health/ready", response_model=None)
async def ready(request: Request, driver: DriverDep) -> Response:
    """200 when every model has an engine that takes work, 503 when one has none, or when draining.

    Both name the state of each engine, why one is not ready, and the node of one elsewhere.
    """
    dispatcher = driver.dispatcher
    draining, fine = state_of(request.app).draining, dispatcher.healthy
    body: dict[str, Any] = {
        "status": "draining" if draining else "ready" if fine else "not ready",
        "engines": {slot.name: slot.state.value for slot in dispatcher.slots},
    }
    off = [slot for slot in dispatcher.slots if slot.state is not EngineState.READY]
    if reasons := {slot.name: slot.last_error for slot in off if slot.last_error}:
        body["reasons"] = reasons
    if nodes := {slot.name: slot.node for slot in dispatcher.slots if slot.node}:
        body["nodes"] = nodes
    return JSONResponse(body, 200 if fine and not draining else 503)


@router.get("/v1/models")
async def models(driver: DriverDep, tenant: Tenant) -> dict[str, Any]:
    """The served models, the default one first, in OpenAI's shape."""
    dispatcher = driver.dispatcher
    return {
        "object": "list",
        "data": [
            {
                "id": model,
                "object": "model",
                "created": 0,
                "owned_by": "weftline",
                "max_model_len": dispatcher.prompter(model).description.context_limit,
            }
            for model in dispatcher.models
        ],
    }
