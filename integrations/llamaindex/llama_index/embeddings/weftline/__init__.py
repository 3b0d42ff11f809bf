"""Embeddings by an embedder of a weftline server."""

from __future__ import annotations

from llama_index.embeddings.weftline.base import WeftlineEmbedding

__all__ = ["WeftlineEmbedding"]
