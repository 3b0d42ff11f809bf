"""Memory: which applications may use the KV caches, and which contexts stay in them."""

from __future__ import annotations

from weftline_server.schedule.memory.keeper import Memory, Outlook, Want
from weftline_server.schedule.memory.verbs import (
    AdviseContext,
    FreeContext,
    RetainContext,
    Verb,
    perform,
)

__all__ = [
    "AdviseContext",
    "FreeContext",
    "Memory",
    "Outlook",
    "RetainContext",
    "Verb",
    "Want",
    "perform",
]
