"""The openai engine: calls an OpenAI-compatible HTTP endpoint; also the base of the vllm engine."""

from __future__ import annotations
