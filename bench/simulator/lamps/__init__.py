"""Requests that pause for tools on one KV cache: LAMPS's example, its baselines, and our policy."""

from __future__ import annotations
