"""WeftlineRerank: a document compressor that orders documents by a reranker of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import Field

from langchain_weftline.ahead.handler_lookup import RerankKey, aranked_of, ranked_of
from langchain_weftline.retrieval.place import ServerAddress
from weftline.kit import retrieval_requests

SCORE = "relevance_score"  # the metadata that holds a document's score, as Cohere's class has it


class WeftlineRerank(ServerAddress, BaseDocumentCompressor):
    """Keeps the `top_n` documents that fit the query best, the best first.

    Use it with ContextualCompressionRetriever. `model` may also be an embedder, which scores by the
    similarity of tokens. A `top_n` of None keeps all documents.
    """

    model: str | None = Field(default=None)
    top_n: int | None = Field(default=3, gt=0)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents; each has its score as `relevance_score` in its metadata."""
        if not documents:
            return []
        ranked = ranked_of(self._key(documents, query), callbacks, self.timeout)
        if ranked is not None:
            return _chosen(documents, _placed(documents, ranked))
        return _chosen(documents, self.server.ask(self._asked(documents, query)))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents; each has its score as `relevance_score` in its metadata."""
        if not documents:
            return []
        ranked = await aranked_of(self._key(documents, query), callbacks, self.timeout)
        if ranked is not None:
            return _chosen(documents, _placed(documents, ranked))
        return _chosen(documents, await self.server.aask(self._asked(documents, query)))

    def _key(self, documents: Sequence[Document], query: str) -> RerankKey:
        found = tuple((document.id, document.page_content) for document in documents)
        return RerankKey(self.server.server, self.model, query, found, self.top_n)

    def _asked(self, documents: Sequence[Document], query: str) -> retrieval_requests.AnswerSteps:
        texts = [document.page_content for document in documents]
        return retrieval_requests.rerank(query, texts, self.top_n, self.model)


def _placed(
    documents: Sequence[Document], ranked: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The kept hits with their places among the documents, as an answer has them."""
    places = {document.id: at for at, document in enumerate(documents)}
    return [{"index": places[hit["id"]], "score": hit["score"]} for hit in ranked]


def _chosen(documents: Sequence[Document], ranked: Sequence[dict[str, Any]]) -> list[Document]:
    found = []
    for item in ranked:
        document = documents[item["index"]]
        metadata = {**document.metadata, SCORE: item["score"]}
        found.append(document.model_copy(update={"metadata": metadata}))
    return found
