"""Runs the server's own scheduling on simulated engines, in simulated time."""

from __future__ import annotations
