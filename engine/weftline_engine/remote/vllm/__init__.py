"""The vllm engine: starts vLLM in its own interpreter, or connects to one that runs."""

from __future__ import annotations
