"""A reranker of a weftline server."""

from __future__ import annotations

from llama_index.postprocessor.weftline.base import WeftlineRerank

__all__ = ["WeftlineRerank"]
