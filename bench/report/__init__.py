"""Draws docs/benchmarks.md from the results of the harness."""
