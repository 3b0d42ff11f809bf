"""The engines of the server: what each runs, its KV pool, and its tokens a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request

from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.state import ServiceDep, Tenant, sees_all
from weftline_server.observe.engine_rates import EngineRates
from weftline_server.runtime.service import Service

router = APIRouter(prefix="/v1/engines", tags=["engines"])

FOLLOW_S = 1.0  # between two looks at the engines that a page follows


@router.get("")
async def list_engines(request: Request, service: ServiceDep, tenant: Tenant) -> dict[str, Any]:
    """The engines as they are now.

    Where several tenants share the server, `running` and `waiting` count the asking tenant's calls,
    and what all tenants' calls make of an engine is null, but for the tenant of `metrics_tenant`.
    """
    own = None if sees_all(request, tenant) else tenant
    return {"engines": EngineRates().rows(service.engines.activity(own), time.monotonic())}


@router.get("/follow", response_model=None)
async def follow_engines(request: Request, service: ServiceDep, tenant: Tenant) -> EventStream:
    """The same every second, as server-sent events, until the server stops."""
    return EventStream(_rows(service, None if sees_all(request, tenant) else tenant))


async def _rows(service: Service, tenant: str | None) -> AsyncGenerator[bytes, None]:
    rates = EngineRates()
    while not service.lifecycle.draining:
        rows = rates.rows(service.engines.activity(tenant), time.monotonic())
        yield sse("engines", {"engines": rows})
        await asyncio.sleep(FOLLOW_S)
