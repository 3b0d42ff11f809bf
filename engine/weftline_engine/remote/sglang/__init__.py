"""The sglang engine: connects to an SGLang server that runs, by its native interface."""

from __future__ import annotations
