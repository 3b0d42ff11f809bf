"""Benchmarks of one part each: run one as `python -m bench.micro.NAME` from the checkout's root."""

from __future__ import annotations
