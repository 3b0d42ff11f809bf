"""Embeddings, a vector store and a reranker that a weftline server runs."""

from __future__ import annotations

from langchain_weftline.retrieval.embeddings import WeftlineEmbeddings
from langchain_weftline.retrieval.rerank import WeftlineRerank
from langchain_weftline.retrieval.vectorstore import WeftlineVectorStore

__all__ = ["WeftlineEmbeddings", "WeftlineRerank", "WeftlineVectorStore"]
