"""WeftlineEmbedding: a LlamaIndex embedding model in a weftline server."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import Field, SecretStr, field_validator

from weftline.adapters import Retrieval, retrieval
from weftline.adapters.server import Server, default_api_key, default_base_url


def _api_key() -> SecretStr | None:
    key = default_api_key()
    return None if key is None else SecretStr(key)


class WeftlineEmbedding(BaseEmbedding):
    """Embeds with the server's embedder `model_name`; "default" is the server's first one.

    Start the server with `weftline serve --embedder minilm`, for example. Then:

        Settings.embed_model = WeftlineEmbedding()

    Requests of all callers share the embedder's batches. Errors are those of `weftline.errors`.
    """

    model_name: str = Field(default="default")
    # The server forms its own batches: one request may hold many texts.
    embed_batch_size: int = Field(default=256, gt=0, le=2048)
    base_url: str = Field(default_factory=default_base_url, validate_default=True)
    api_key: SecretStr | None = Field(default_factory=_api_key, exclude=True)
    timeout: float | None = Field(default=600.0, gt=0)

    def __init__(self, model_name: str = "default", **data: Any) -> None:
        super().__init__(model_name=model_name, **data)

    @classmethod
    def class_name(cls) -> str:
        """The name in saved settings."""
        return "WeftlineEmbedding"

    @field_validator("base_url", mode="before")
    @classmethod
    def _without_v1(cls, url: Any) -> Any:
        return url.rstrip("/").removesuffix("/v1") if isinstance(url, str) else url

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        parts = retrieval.portions(texts)
        return [
            vector
            for part in parts
            for vector in retrieval.vectors_of(self._server.ask(self._asked(texts[part])))
        ]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        parts = retrieval.portions(texts)
        return [
            vector
            for part in parts
            for vector in retrieval.vectors_of(await self._server.aask(self._asked(texts[part])))
        ]

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await self._aget_text_embedding(query)

    def _asked(self, texts: list[str]) -> retrieval.Asked:
        return retrieval.embed(texts, None if self.model_name == "default" else self.model_name)

    @property
    def _server(self) -> Retrieval:
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return Retrieval(Server(self.base_url, key, timeout_s=self.timeout))
