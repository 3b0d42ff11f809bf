"""The server's own state: GET /health/live, /health/ready, /version and /metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import Forbidden
from weftline_server.http.state import ServiceDep, Tenant, sees_all, state_of
from weftline_server.observe import engine_metrics
from weftline_server.observe.metrics import VERSION
from weftline_server.schedule.engines.member import EngineState

router = APIRouter(tags=["health"])

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus's text format


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The event loop answers."""
    return {"status": "live"}


# vLLM's probe, and those of SageMaker, which may also be a POST.
@router.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
@router.get("/health", response_model=None, include_in_schema=False)
@router.get("/health/ready", response_model=None)
async def ready(request: Request, service: ServiceDep) -> Response:
    """200 if every model has an engine that takes work; 503 if one has none, while draining, and
    while the store of sessions does not answer or cannot be written.

    GET /health and /ping do the same, as in vLLM.

    Either answer names the state of each engine. Where all clients are one tenant, the answer also
    says why an engine is not ready, which another tenant's request may have caused, and the node of
    one elsewhere.
    """
    status = service.engines.status()
    one_tenant = len(set(state_of(request.app).config.keys.values())) <= 1
    off = [engine for engine in status.engines if engine.state is not EngineState.READY]
    failure = service.store_failure
    healthy = status.healthy and not failure
    body: dict[str, Any] = {
        "status": "draining" if status.draining else "ready" if healthy else "not ready",
        "engines": {engine.name: engine.state.value for engine in status.engines},
    }
    if failure:
        body["store"] = "unavailable"
    reasons = {engine.name: engine.last_error for engine in off if engine.last_error}
    if one_tenant and (reasons := reasons | ({"store": failure} if failure else {})):
        body["reasons"] = reasons
    if one_tenant and (
        nodes := {engine.name: engine.node for engine in status.engines if engine.node}
    ):
        body["nodes"] = nodes
    return JSONResponse(body, 200 if healthy and not status.draining else 503)


@router.get("/version")
async def version(tenant: Tenant) -> dict[str, str]:
    """The version of weftline, at the place where vLLM has its own."""
    return {"version": VERSION}


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, service: ServiceDep, tenant: Tenant) -> Response:
    """Queue, engines, tokens and phases, and what engines measure themselves.

    Where the server has keys, one is needed. They count the calls of all tenants, so where there
    are several only the tenant of `metrics_tenant` may read them.
    """
    if not sees_all(request, tenant):
        raise Forbidden(
            "metrics count the calls of all tenants: use the key of the tenant that "
            "`metrics_tenant` names in the server's configuration",
            param="Authorization",
        )
    rendered = state_of(request.app).metrics.render()
    of_engines = await engine_metrics.gather(service.engines.statuses)
    return Response(rendered + of_engines, media_type=METRICS_TYPE)
