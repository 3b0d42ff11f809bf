"""Engines: what runs primitives, behind the one contract of `weftline_engine.api`."""

from __future__ import annotations
