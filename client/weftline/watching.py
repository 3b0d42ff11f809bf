"""The public name of the events that the server pushes for a submit with `watch`."""

from __future__ import annotations

from weftline.sdk.watch_events import Due, Event, Submitted, Value, event_of
from weftline.sdk.watch_events import GraphEvent as Graph
from weftline.sdk.watch_events import VariableFailed as Failed
from weftline.sdk.watch_events import VariableText as Part

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
