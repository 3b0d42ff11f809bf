"""The public name of the server that runs as long as a `with` block."""

from __future__ import annotations

from weftline.sdk.local_server import (
    local_server,
)

__all__ = [
    "local_server",
]
