"""Routes without FastAPI's own handling of a request, which took a tenth of the time of a call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute, APIRouter
from starlette.responses import Response


class Direct(APIRoute):
    """A route whose endpoint takes the request alone, and makes the response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself: it has no parameters that FastAPI would have to find."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


def add_routes(app: FastAPI, router: APIRouter) -> None:
    """Add the router's routes to those of the application.

    `include_router` keeps a router in one piece, and searches it twice for every request.
    """
    for route in router.routes:
        if isinstance(route, APIRoute):
            route.operation_id = route.name
        app.router.routes.append(route)
