"""Summaries of long conversations that keep the cache."""

from __future__ import annotations

from langchain_weftline.compaction.summarization import WeftlineSummarizationMiddleware

__all__ = ["WeftlineSummarizationMiddleware"]
