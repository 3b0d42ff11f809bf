"""Writes docs/benchmarks.md and its pictures from the summaries in bench/results."""

from __future__ import annotations
