"""The public name of the events that the server pushes for a submit with `watch`."""

from __future__ import annotations

from weftline.sdk.events import (
    Due,
    Event,
    Failed,
    Graph,
    Part,
    Submitted,
    Value,
    event_of,
)

__all__ = [
    "Due",
    "Event",
    "Failed",
    "Graph",
    "Part",
    "Submitted",
    "Value",
    "event_of",
]
