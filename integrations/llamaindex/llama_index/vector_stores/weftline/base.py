"""WeftlineVectorStore: a LlamaIndex vector store in a weftline server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from llama_index.llms.weftline.ahead.retrieval_answers import aask, ask, astored, stored

from weftline.kit import Retrieval, retrieval_requests
from weftline.kit.server_fields import ServerFields


class WeftlineVectorStore(BasePydanticVectorStore, ServerFields):
    """A store of the server, by its name.

    Start the server with `weftline serve --embedder minilm --store sqlite:docs.db`, for example.

        context = StorageContext.from_defaults(vector_store=WeftlineVectorStore())
        VectorStoreIndex.from_documents(documents, context, embed_model=WeftlineEmbedding())

    The store keeps texts and metadata, so an index can be opened again with
    `VectorStoreIndex.from_vector_store`. A filter must be a conjunction of equalities.
    """

    stores_text: bool = True
    store: str = Field(default="default")

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineVectorStore"

    @property
    def client(self) -> Retrieval:
        """The server that keeps the store."""
        return self.server

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, or replace those with equal ids."""
        items, vectors = self.items_of(nodes), [node.get_embedding() for node in nodes]
        ids = stored(self.client, self.store, items, vectors)
        if ids is not None:
            return ids
        asked = self._added(items, vectors)
        return [id for one in asked for id in self.client.ask(one)["ids"]]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, or replace those with equal ids."""
        items, vectors = self.items_of(nodes), [node.get_embedding() for node in nodes]
        ids = await astored(self.client, self.store, items, vectors)
        if ids is not None:
            return ids
        answers = [await self.client.aask(one) for one in self._added(items, vectors)]
        return [id for answer in answers for id in answer["ids"]]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        self.client.ask(retrieval_requests.delete((), self.store, {"ref_doc_id": ref_doc_id}))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        await self.client.aask(
            retrieval_requests.delete((), self.store, {"ref_doc_id": ref_doc_id})
        )

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes by their ids; those that match the filters if there are no ids."""
        ids, equal = self._chosen(node_ids, filters)
        self.client.ask(retrieval_requests.delete(ids, self.store, equal))

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes by their ids; those that match the filters if there are no ids."""
        ids, equal = self._chosen(node_ids, filters)
        await self.client.aask(retrieval_requests.delete(ids, self.store, equal))

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Nodes by their ids; those that match the filters if there are no ids."""
        ids, equal = self._chosen(node_ids, filters)
        return list(map(_node, self.client.ask(retrieval_requests.fetch(ids, self.store, equal))))

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Nodes by their ids; those that match the filters if there are no ids."""
        ids, equal = self._chosen(node_ids, filters)
        return list(
            map(_node, await self.client.aask(retrieval_requests.fetch(ids, self.store, equal)))
        )

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes that are nearest to the query's embedding, the best first."""
        return _result(ask(self.client, self.asked(query)))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes that are nearest to the query's embedding, the best first."""
        return _result(await aask(self.client, self.asked(query)))

    @staticmethod
    def items_of(nodes: Sequence[BaseNode]) -> list[dict[str, Any]]:
        """The items that the store keeps of nodes."""
        return [
            {
                "id": node.node_id,
                "text": node.get_content(metadata_mode=MetadataMode.NONE),
                "metadata": node_to_metadata_dict(node, remove_text=True),
            }
            for node in nodes
        ]

    @staticmethod
    def chars_of(item: Mapping[str, Any]) -> int:
        """About how long an item is in a request."""
        return len(item["text"]) + len(item["metadata"]["_node_content"])

    def _added(
        self, items: Sequence[dict[str, Any]], vectors: Sequence[list[float]]
    ) -> list[retrieval_requests.AnswerSteps]:
        sizes = [item["text"] + item["metadata"]["_node_content"] for item in items]
        parts = retrieval_requests.portions(sizes, len(vectors[0]) if vectors else 0)
        return [
            retrieval_requests.add_embedded(items[part], vectors[part], self.store)
            for part in parts
        ]

    def asked(self, query: VectorStoreQuery) -> retrieval_requests.AnswerSteps:
        """The request for the nodes that are nearest to a query's embedding."""
        if query.mode != VectorStoreQueryMode.DEFAULT or query.query_embedding is None:
            raise ValueError("a WeftlineVectorStore searches by an embedding, in the default mode")
        if query.doc_ids or query.node_ids:
            raise ValueError("a WeftlineVectorStore searches all nodes: use a filter, not ids")
        equal = _equal(query.filters)
        return retrieval_requests.find_near(
            query.query_embedding, self.store, query.similarity_top_k, equal
        )

    @staticmethod
    def _chosen(
        ids: list[str] | None, filters: MetadataFilters | None
    ) -> tuple[list[str], Mapping[str, Any]]:
        equal = _equal(filters)
        if ids and equal:
            raise ValueError("a WeftlineVectorStore takes ids or filters, not both")
        return ids or [], equal


def _equal(filters: MetadataFilters | None) -> Mapping[str, Any]:
    """The metadata that `filters` require. Raises ValueError for anything but equalities."""
    if filters is None:
        return {}
    if filters.condition not in (FilterCondition.AND, None):
        raise ValueError("a WeftlineVectorStore takes filters that all must hold")
    found: dict[str, Any] = {}
    for one in filters.legacy_filters():
        if found.setdefault(one.key, one.value) != one.value:
            raise ValueError(f"two filters give {one.key!r} different values")
    return found


def _node(item: Mapping[str, Any]) -> BaseNode:
    """The node of a document. One that another client added has its text and metadata only."""
    if "_node_content" not in item["metadata"]:
        return TextNode(id_=item["id"], text=item["text"], metadata=dict(item["metadata"]))
    return metadata_dict_to_node(item["metadata"], text=item["text"])


def _result(hits: Sequence[Mapping[str, Any]]) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        nodes=list(map(_node, hits)),
        similarities=[hit["score"] for hit in hits],
        ids=[hit["id"] for hit in hits],
    )
