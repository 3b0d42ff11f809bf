"""A reranker of a weftline server."""

from llama_index.postprocessor.weftline.base import WeftlineRerank

__all__ = ["WeftlineRerank"]
