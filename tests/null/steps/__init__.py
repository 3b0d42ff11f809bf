"""Steps that are computed by the client or by the server: client, function, branch, each, loop."""

from __future__ import annotations
