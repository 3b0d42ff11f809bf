"""GET /metrics: what Prometheus reads."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from weftline_server.http.deps import DriverDep, Tenant
from weftline_server.http.state import state_of
from weftline_server.observe import engine_metrics

router = APIRouter(tags=["health"])

# prometheus_client's own constant, named here so that a route needs no package.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """Queue, engines, tokens and phases, and what engines measure themselves; a key is needed where
    the server has keys."""
    rendered = state_of(request.app).metrics.render()
    theirs = await engine_metrics.gather(driver.dispatcher.slots)
    return Response(rendered + theirs, media_type=CONTENT_TYPE)
