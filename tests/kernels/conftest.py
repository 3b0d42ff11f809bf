"""Runs the Triton kernels on the CPU. The interpreter must be chosen before a kernel is defined."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
