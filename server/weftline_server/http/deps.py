"""What every route needs: the driver, and which tenant is asking."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

from fastapi import Depends, Request

from weftline.errors import EngineUnavailable, Unauthorized
from weftline_server.http.state import state_of
from weftline_server.runtime.driver import Driver

OPEN_TENANT = "local"  # everybody, on a server without keys


async def _driver(request: Request) -> Driver:
    return state_of(request.app).driver


def tenant_of(request: Request) -> str:
    """The tenant of the request's key; deny by default once there are keys."""
    config = state_of(request.app).config
    if not config.keys:
        return OPEN_TENANT
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    digest = hashlib.sha256(given.encode()).digest()
    found = None
    # Every key is compared, in constant time each, so that timing tells nothing.
    for key, tenant in config.keys.items():
        if hmac.compare_digest(hashlib.sha256(key.encode()).digest(), digest):
            found = tenant
    if found is None:
        raise Unauthorized("an API key is needed: send 'Authorization: Bearer KEY'")
    return found


async def _accepting(request: Request) -> None:
    if state_of(request.app).draining:
        raise EngineUnavailable("the server is shutting down", retry_after_s=5.0)


# Coroutines all: FastAPI hands a plain function to a thread, which costs more than these do.
async def _tenant(request: Request) -> str:
    return tenant_of(request)


Tenant = Annotated[str, Depends(_tenant)]
DriverDep = Annotated[Driver, Depends(_driver)]
ACCEPTING = Depends(_accepting)
