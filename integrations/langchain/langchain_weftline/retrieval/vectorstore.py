"""WeftlineVectorStore: a LangChain vector store in the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_weftline.ahead.handler_lookup import SearchKey, ahits_of, hits_of, retrieving
from langchain_weftline.retrieval.embeddings import WeftlineEmbeddings
from weftline.kit import Server, retrieval_requests
from weftline.kit.retrieval_requests import AnswerSteps, Item

Filter = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoreInServer:
    """A store of a server, by its name, and the embedder of its queries."""

    server: Server
    name: str
    embedder: retrieval_requests.Embedder


class WeftlineVectorStore(VectorStore):
    """A store of the server, by its name.

    Start the server with `weftline serve --embedder minilm --store sqlite:docs.db`, for example.

        store = WeftlineVectorStore()
        store.add_texts(["The shuttle carries the weft."])
        store.similarity_search("What carries the weft?", k=1)

    Adding and searching each take one request, in which the server also embeds. With embeddings of
    another class the client embeds, and the server only stores and searches. A text without an id
    gets a hash of its text and metadata as its id, so adding it again changes nothing. `filter` has
    metadata that a document must have.
    """

    def __init__(
        self, embedding: Embeddings | None = None, *, store: str = "default", **place: Any
    ) -> None:
        """Use the embedder of `embedding`, by default WeftlineEmbeddings(**place).

        `place` is `base_url`, `api_key` and `timeout`, as WeftlineEmbeddings takes them.
        """
        ours = embedding if isinstance(embedding, WeftlineEmbeddings) and not place else None
        self._place = ours or WeftlineEmbeddings(**place)
        self._embedding: Embeddings = embedding or self._place
        self._store = store

    @property
    def embeddings(self) -> Embeddings:
        return self._embedding

    @property
    def in_server(self) -> StoreInServer | None:
        """The store, where the server embeds its queries. None where the client embeds them."""
        if not isinstance(self._embedding, WeftlineEmbeddings):
            return None
        return StoreInServer(self._place.server.server, self._store, self._embedding.embedder)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> WeftlineVectorStore:
        """A store with these texts added. The rest are arguments of the class."""
        made = cls(embedding, **kwargs)
        made.add_texts(texts, metadatas, ids=ids)
        return made

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> WeftlineVectorStore:
        """A store with these texts added. The rest are arguments of the class."""
        made = cls(embedding, **kwargs)
        await made.aadd_texts(texts, metadatas, ids=ids)
        return made

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those with equal ids; return the ids. One request, if they fit."""
        items, texts = _items(texts, metadatas, ids, kwargs)
        if not isinstance(self._embedding, WeftlineEmbeddings):
            vectors = self._embedding.embed_documents(texts) if texts else []
            asked = _with_vectors(items, vectors, self._store)
        else:
            asked = _without_vectors(items, self._store, self._embedding.embedder)
        return [id for one in asked for id in self._place.server.ask(one)["ids"]]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those with equal ids; return the ids. One request, if they fit."""
        items, texts = _items(texts, metadatas, ids, kwargs)
        if not isinstance(self._embedding, WeftlineEmbeddings):
            vectors = await self._embedding.aembed_documents(texts) if texts else []
            asked = _with_vectors(items, vectors, self._store)
        else:
            asked = _without_vectors(items, self._store, self._embedding.embedder)
        return [id for one in asked for id in (await self._place.server.aask(one))["ids"]]

    def delete(
        self, ids: list[str] | None = None, *, filter: Filter | None = None, **kwargs: Any
    ) -> bool:
        """Delete documents by their ids, and those that match `filter`. Unknown ids are fine."""
        self._place.server.ask(self._deleted(ids, filter))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order. Unknown ids are left out."""
        return list(
            map(_document, self._place.server.ask(retrieval_requests.fetch(ids, self._store)))
        )

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The `k` nearest documents and their cosine similarity, in one request."""
        if not isinstance(self._embedding, WeftlineEmbeddings):
            vector = self._embedding.embed_query(query)
            near = retrieval_requests.find_near(vector, self._store, k, filter)
            return _scored(self._place.server.ask(near))
        hits = hits_of(self._key(query, k, filter), self._place.timeout)
        if hits is None:
            asked = retrieval_requests.find(query, self._store, self._embedding.embedder, k, filter)
            hits = self._place.server.ask(asked)
        return _scored(hits)

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The `k` nearest documents and their cosine similarity, in one request."""
        if not isinstance(self._embedding, WeftlineEmbeddings):
            vector = await self._embedding.aembed_query(query)
            near = retrieval_requests.find_near(vector, self._store, k, filter)
            return _scored(await self._place.server.aask(near))
        hits = await ahits_of(self._key(query, k, filter), self._place.timeout)
        if hits is None:
            asked = retrieval_requests.find(query, self._store, self._embedding.embedder, k, filter)
            hits = await self._place.server.aask(asked)
        return _scored(hits)

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` nearest documents, the best first."""
        return [one for one, _ in self.similarity_search_with_score(query, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` nearest documents, the best first."""
        return [one for one, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    def as_retriever(self, **kwargs: Any) -> WeftlineRetriever:
        """A retriever whose searches an accelerated chain begins early."""
        tags = [*(kwargs.pop("tags", None) or ()), *self._get_retriever_tags()]
        return WeftlineRetriever(vectorstore=self, tags=tags, **kwargs)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        asked = retrieval_requests.find_near(embedding, self._store, k, filter)
        return [one for one, _ in _scored(self._place.server.ask(asked))]

    def _key(self, query: str, k: int, filter: Filter | None) -> SearchKey:
        at = self.in_server
        assert at is not None, "the server embeds the query"
        terms = json.dumps(dict(filter or {}), sort_keys=True, default=str)
        return SearchKey(at.server, at.name, at.embedder, query, k, terms)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        # A cosine similarity is 1 for equal vectors. Relevance is 0 for a negative similarity.
        return lambda similarity: max(0.0, min(1.0, similarity))

    def _deleted(self, ids: Sequence[str] | None, filter: Filter | None) -> AnswerSteps:
        if ids is None and not filter:
            raise ValueError("delete takes ids or a filter: name the documents")
        return retrieval_requests.delete(ids or (), self._store, filter)


class WeftlineRetriever(VectorStoreRetriever):
    """The retriever of a WeftlineVectorStore."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        with retrieving(run_manager):
            return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        with retrieving(run_manager):
            return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)


def _items(
    texts: Iterable[str],
    metadatas: Sequence[Mapping[str, Any]] | None,
    ids: Sequence[str | None] | None,
    kwargs: Mapping[str, Any],
) -> tuple[list[Item], list[str]]:
    """The items of a request, and their texts. Raises ValueError for lists of unequal lengths."""
    if kwargs:
        raise TypeError(f"add_texts has no argument {next(iter(kwargs))!r}")
    texts = list(texts)
    for name, given in (("metadatas", metadatas), ("ids", ids)):
        if given is not None and len(given) != len(texts):
            raise ValueError(f"{len(texts)} texts came with {len(given)} {name}")
    items: list[Item] = []
    for at, text in enumerate(texts):
        item: dict[str, Any] = {"text": text, "metadata": dict(metadatas[at] if metadatas else {})}
        if ids and ids[at]:
            item["id"] = ids[at]
        items.append(item)
    return items, texts


def _with_vectors(
    items: Sequence[Item], vectors: Sequence[Sequence[float]], store: str
) -> list[AnswerSteps]:
    parts = retrieval_requests.portions(
        [item["text"] for item in items], len(vectors[0]) if vectors else 0
    )
    return [retrieval_requests.add_embedded(items[part], vectors[part], store) for part in parts]


def _without_vectors(
    items: Sequence[Item], store: str, embedder: retrieval_requests.Embedder
) -> list[AnswerSteps]:
    parts = retrieval_requests.portions([item["text"] for item in items])
    return [retrieval_requests.add(items[part], store, embedder) for part in parts]


def _document(item: Item) -> Document:
    return Document(id=item["id"], page_content=item["text"], metadata=item["metadata"])


def _scored(hits: Sequence[Item]) -> list[tuple[Document, float]]:
    return [(_document(hit), hit["score"]) for hit in hits]
