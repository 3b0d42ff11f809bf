"""GET /health/live, GET /health/ready and GET /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline_server.routes.deps import DriverDep, Tenant
from weftline_server.schedule.slot import EngineState

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The event loop answers."""
    return {"status": "live"}


@router.get("/health/ready", response_model=None)
async def ready(request: Request, driver: DriverDep) -> Response:
    """200 when every engine is ready, 503 with their states when one is not, or when draining."""
    states = {name: state.value for name, state in driver.dispatcher.states.items()}
    fine = all(state == EngineState.READY for state in states.values())
    if request.app.state.draining:
        return JSONResponse({"status": "draining", "engines": states}, 503)
    return JSONResponse(
        {"status": "ready" if fine else "not ready", "engines": states}, 200 if fine else 503
    )


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
