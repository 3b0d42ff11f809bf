"""A llama-server that embeds or reranks, as a child process and an engine of items."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weftline_engine import api
from weftline_engine.remote.llamacpp.config import LlamaPoolingConfig
from weftline_engine.remote.llamacpp.llama_child import LlamaChild
from weftline_engine.remote.openai.endpoint import EndpointConfig, EndpointError
from weftline_engine.services.retrieval.descriptions import EMBED, RERANK
from weftline_engine.services.retrieval.remote_items import RemoteConfig, RemoteItems, RemoteRows


class LlamaItems(RemoteItems):
    """An `api.Engine` that starts llama-server and sends texts to its OpenAI endpoints."""

    def __init__(self, config: LlamaPoolingConfig) -> None:
        super().__init__(
            RemoteConfig(
                name=config.name,
                kind=RERANK if config.reranks else EMBED,
                endpoint=EndpointConfig(url="http://llama-server/v1"),  # until it has started
                batch=config.batch,
            )
        )
        self._child = LlamaChild(config)
        self._context = config.context
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> api.Description:
        """Start llama-server and send it one text. Raises EngineDied."""
        await self._child.start()
        where = self._child.endpoint
        # llama-server ends a connection after some requests, also while the next one is sent.
        endpoint = replace(where, url=f"{where.url}/v1", keeps=False)
        self._config = replace(self._config, endpoint=endpoint)
        try:
            description = await super().start()
        except api.EngineDied:
            await self._child.close()
            raise
        self._watch = asyncio.create_task(self._watch_child())
        return description

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await super().close()
        await self._child.close()

    async def _part(
        self,
        query: str | None,
        texts: Sequence[str],
        more: Mapping[str, Any] | None = None,
    ) -> RemoteRows:
        """`RemoteItems._part`. llama-server calls a text that is too long an error of its own, and
        cuts none."""
        if more:
            raise EndpointError(
                "InvalidRequest", "llama-server cuts no text: leave truncate_prompt_tokens out"
            )
        try:
            return await super()._part(query, texts)
        except EndpointError as error:
            if "too large to process" not in str(error):
                raise
            raise EndpointError(
                "ContextTooLong",
                f"a text has more than the {self._context:,} tokens that {self._config.name} takes "
                "at once: split it",
            ) from None

    async def _watch_child(self) -> None:
        self._outbox.end(api.EngineDied(await self._child.wait()))
