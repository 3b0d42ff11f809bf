"""Kernels: one operation a file, each with its torch reference, CPU path, Triton kernel and wrapper."""
