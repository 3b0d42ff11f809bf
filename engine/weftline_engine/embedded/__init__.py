"""The embedded engine: paged KV cache, context tree, continuous batching; knows no tokenizer."""

from __future__ import annotations
