"""Spans and provenance: what LlamaIndex is doing, and what made each prompt."""
