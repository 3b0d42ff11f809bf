"""Query engines that ask a weftline server for more than LlamaIndex itself does."""

from __future__ import annotations

from llama_index.response_synthesizers.weftline.base import WeftlineSynthesizer
from llama_index.response_synthesizers.weftline.router import SpeculativeRouterQueryEngine

__all__ = ["SpeculativeRouterQueryEngine", "WeftlineSynthesizer"]
