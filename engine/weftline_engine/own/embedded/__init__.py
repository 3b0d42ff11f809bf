"""The embedded engine: paged KV cache, context tree, continuous batching. It has no tokenizer."""

from __future__ import annotations
