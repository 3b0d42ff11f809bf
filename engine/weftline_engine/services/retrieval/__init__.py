"""Engines that work on items instead of prompts: embedders, rerankers and vector stores.

These engines stand behind the same contract as engines of LLMs. A host runs `ItemsCore`, which
batches the items of many ops; an `ItemBackend` computes a batch. Importing this package imports no
torch.
"""

from __future__ import annotations

from weftline_engine.services.retrieval.batching import Share, form
from weftline_engine.services.retrieval.core import InputRefused, Item, ItemBackend, ItemsCore

__all__ = ["InputRefused", "Item", "ItemBackend", "ItemsCore", "Share", "form"]
