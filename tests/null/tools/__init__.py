"""Tools as an engine: their calls, their limits and their faults."""

from __future__ import annotations
