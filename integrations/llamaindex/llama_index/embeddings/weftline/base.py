"""WeftlineEmbedding: a LlamaIndex embedding model in a weftline server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode
from llama_index.llms.weftline.ahead.retrieval_answers import aask, ask
from llama_index.llms.weftline.trace.span_handler import listen
from llama_index_instrumentation import get_dispatcher

from weftline.kit import retrieval_requests
from weftline.kit.server_fields import ServerFields

_dispatcher = get_dispatcher(__name__)


class WeftlineEmbedding(BaseEmbedding, ServerFields):
    """Embeds texts with the server's embedder `model_name`. "default" is the server's first one.

    Start the server with `weftline serve --embedder minilm`, for example. Then:

        Settings.embed_model = WeftlineEmbedding()

    Requests of all callers share the embedder's batches. Errors are those of `weftline.errors`. A
    text that is longer than the model takes is one, ContextTooLong, unless texts are cut to
    `truncate_prompt_tokens`; -1 is as many as the model takes.
    """

    model_name: str = Field(default="default")
    truncate_prompt_tokens: int | None = Field(default=None)
    # The server forms its own batches, so one request may have many texts.
    embed_batch_size: int = Field(default=256, gt=0, le=2048)

    def __init__(self, model_name: str = "default", **data: Any) -> None:
        super().__init__(model_name=model_name, **data)
        listen()  # a query's embedding and search are sent ahead together

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineEmbedding"

    @_dispatcher.span
    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Embed nodes. LlamaIndex gives `__call__` a span, but not this method."""
        return await super().acall(nodes, **kwargs)

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        parts = retrieval_requests.portions(texts)
        return [
            vector
            for part in parts
            for vector in retrieval_requests.vectors_of(ask(self.server, self.asked(texts[part])))
        ]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        parts = retrieval_requests.portions(texts)
        return [
            vector
            for part in parts
            for vector in retrieval_requests.vectors_of(
                await aask(self.server, self.asked(texts[part]))
            )
        ]

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await self._aget_text_embedding(query)

    def asked(self, texts: list[str]) -> retrieval_requests.AnswerSteps:
        """The request for the vectors of texts."""
        name = None if self.model_name == "default" else self.model_name
        return retrieval_requests.embed(
            texts, retrieval_requests.Embedder(name, self.truncate_prompt_tokens)
        )
