"""Checks and benchmarks of the kernels on a CUDA device; they need torch and triton alone."""
