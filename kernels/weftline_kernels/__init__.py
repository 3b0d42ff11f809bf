"""Kernels: a file per operation, with torch reference, CPU path, Triton kernel and wrapper."""
