"""Checks and benchmarks for a CUDA device. Without pytest they need only torch and triton."""

from __future__ import annotations
