"""Engines run primitives. All of them speak the one contract of `weftline_engine.api`."""

from __future__ import annotations
