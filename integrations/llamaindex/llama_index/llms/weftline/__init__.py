"""LlamaIndex on weftline: an LLM whose synthesizers run as one graph in the server."""

from __future__ import annotations

from llama_index.llms.weftline.base import Weftline
from llama_index.llms.weftline.early import early

__all__ = ["Weftline", "early"]
