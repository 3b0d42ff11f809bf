"""Runs the workloads on several serving systems in turns, and records where the time went."""

from __future__ import annotations
