"""The llamacpp engine: llama.cpp's `llama-server`, whose slots hold the contexts of calls."""

from __future__ import annotations
