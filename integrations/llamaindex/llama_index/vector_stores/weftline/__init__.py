"""A vector store of a weftline server."""

from __future__ import annotations

from llama_index.vector_stores.weftline.base import WeftlineVectorStore

__all__ = ["WeftlineVectorStore"]
