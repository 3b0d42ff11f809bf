"""Decides which primitive runs where and when, and which contexts stay in the KV caches.

`Dispatcher` is the face. It queues primitives as `Work`, places them on the engines, and tells one
`Sessions` about their outcome.

    placement/  a pure function: queue and loads in, placements out
    memory/     which applications may use the KV caches, and which contexts stay there
    engines/    the engines under supervision, what each runs, and the prefixes it holds
"""

from __future__ import annotations

from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.memory.keeper import Want
from weftline_server.schedule.session_protocol import Outcome, Sent, Sessions

__all__ = ["Dispatcher", "Outcome", "Sent", "Sessions", "Want", "Work"]
