"""Where tasks come from: the HTTP request that submitted them, for logs and traces."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The request's id, and the span of the client that sent it (W3C's traceparent), if any."""

    request_id: str = ""
    traceparent: str = ""


NOBODY = Origin()

# Of the request that is being handled. The HTTP layer sets it, the driver reads it.
ORIGIN: ContextVar[Origin] = ContextVar("weftline_origin", default=NOBODY)
