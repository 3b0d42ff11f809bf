"""A vector store of a weftline server."""

from llama_index.vector_stores.weftline.base import WeftlineVectorStore

__all__ = ["WeftlineVectorStore"]
