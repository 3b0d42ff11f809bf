"""Runs the Triton kernels on the CPU: the interpreter has to be asked for before any is defined."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
