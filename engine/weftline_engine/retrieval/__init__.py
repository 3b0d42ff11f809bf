"""Engines that work on items instead of prompts: embedders, rerankers and vector stores.

They stand behind the same contract as engines of LLMs. A host runs `ItemsCore`, which batches the
items of many ops; a `Backend` computes a batch. Importing this package imports no torch.
"""

from __future__ import annotations

from weftline_engine.retrieval.batching import Share, form
from weftline_engine.retrieval.core import Backend, Item, ItemsCore, Refused

__all__ = ["Backend", "Item", "ItemsCore", "Refused", "Share", "form"]
