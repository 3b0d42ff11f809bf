"""WeftlineEmbeddings: LangChain's embeddings by an embedder of the server."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings
from pydantic import Field

from langchain_weftline.retrieval.place import ServerAddress
from weftline.kit import retrieval_requests


class WeftlineEmbeddings(ServerAddress, Embeddings):
    """Embeds texts with an embedder of the server: `model`, or the first one without a name.

    Start the server with `weftline serve --embedder minilm`, for example. Then:

        embeddings = WeftlineEmbeddings()
        embeddings.embed_query("What carries the weft?")

    Requests of all callers share the embedder's batches. Errors are those of `weftline.errors`. A
    text that is longer than the model takes is one, ContextTooLong, unless texts are cut to
    `truncate_prompt_tokens`; -1 is as many as the model takes.
    """

    model: str | None = Field(default=None)
    truncate_prompt_tokens: int | None = Field(default=None)

    @property
    def embedder(self) -> retrieval_requests.Embedder:
        """The embedder of all requests, and to how many tokens it cuts texts."""
        return retrieval_requests.Embedder(self.model, self.truncate_prompt_tokens)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for part in retrieval_requests.portions(texts):
            value = self.server.ask(retrieval_requests.embed(texts[part], self.embedder))
            vectors += retrieval_requests.vectors_of(value)
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for part in retrieval_requests.portions(texts):
            value = await self.server.aask(retrieval_requests.embed(texts[part], self.embedder))
            vectors += retrieval_requests.vectors_of(value)
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.aembed_documents([text]))[0]
