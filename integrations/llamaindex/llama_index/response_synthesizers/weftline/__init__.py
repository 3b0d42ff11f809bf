"""Response synthesis in a weftline server: a whole synthesis as one request."""

from __future__ import annotations

from llama_index.response_synthesizers.weftline.base import WeftlineSynthesizer
from llama_index.response_synthesizers.weftline.router import SpeculativeRouterQueryEngine

__all__ = ["SpeculativeRouterQueryEngine", "WeftlineSynthesizer"]
