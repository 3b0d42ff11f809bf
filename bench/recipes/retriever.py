"""A store as a LlamaIndex retriever."""

from __future__ import annotations

from llama_index.core import QueryBundle
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from bench.recipes.library import Passage, Store


class Library(BaseRetriever):
    """Finds `k` passages of `store` for each query, each once. A passage's source is its id."""

    def __init__(self, store: Store, k: int) -> None:
        self._store, self._k = store, k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._store.search(query_bundle.query_str, self._k)
        return [NodeWithScore(node=node(p), score=1 / rank) for rank, p in enumerate(found, 1)]


def node(passage: Passage) -> TextNode:
    """A passage as a LlamaIndex node."""
    return TextNode(text=passage.text, id_=passage.source)
