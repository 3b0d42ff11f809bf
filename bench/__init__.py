"""The benchmarks of a checkout: the workloads of the papers, and measurements of single parts."""

from __future__ import annotations
