"""Kernels: one operation a file, with its torch reference, CPU path, Triton kernel and wrapper."""
