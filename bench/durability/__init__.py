"""The same kill of a server under load, for weftline with a store and for `langgraph dev`."""

from __future__ import annotations
