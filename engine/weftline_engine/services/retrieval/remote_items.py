"""An embedder or a reranker behind HTTP: /embeddings as OpenAI's, or /rerank as Jina's or that of
Text Embeddings Inference.

The texts of an op go out in requests of `batch` texts, several at once. The endpoint forms its own
batches of them, as vLLM and Text Embeddings Inference do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weftline_engine import api
from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, EndpointError
from weftline_engine.remote.openai.remote import OpAnswer, RemoteEngine
from weftline_engine.services.retrieval import arrays, descriptions
from weftline_engine.services.retrieval.core import InputRefused
from weftline_engine.services.retrieval.descriptions import RERANK
from weftline_engine.services.retrieval.embedder import query_of, size, texts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """An endpoint that computes one `kind`. `endpoint.url` ends before /embeddings or /rerank.

    `model` is its name at the endpoint; None leaves the choice to it. The endpoint must take
    `batch` texts at once; 32 is the default of Text Embeddings Inference.
    """

    name: str
    kind: str
    endpoint: EndpointConfig
    model: str | None = None
    batch: int = 32
    requests: int = 8  # at once
    breaker: BreakerConfig = field(default_factory=BreakerConfig)


@dataclass(frozen=True, slots=True)
class RemoteRows:
    """The results of one request, and the tokens that the endpoint read for them."""

    rows: list[Any]
    tokens: int


class RemoteItems(RemoteEngine):
    """An `api.Engine` that sends texts to an endpoint, and returns vectors or scores."""

    def __init__(self, config: RemoteConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._free = asyncio.Semaphore(config.requests)
        self._reranks = self._rerank

    async def start(self) -> api.Description:
        """Send one text. Raises EngineDied if the endpoint does not answer as it should."""
        self._endpoint = Endpoint(self._config.endpoint)
        try:
            await self._ask_once()
        except EndpointError as error:
            await self._endpoint.close()
            where = self._config.endpoint.url
            raise api.EngineDied(f"{self._config.name} at {where} did not start: {error}") from None
        return descriptions.of_endpoint(self._config.name, self._config.kind)

    async def _ask_once(self) -> None:
        """Send one text. A reranker that refuses Jina's words may take those of TEI."""
        if self._config.kind != RERANK:
            await self._part(None, ["weft"])
            return
        try:
            await self._part("weft", ["weft"])
        except EndpointError as refusal:
            if refusal.error != "InvalidRequest":
                raise
            self._reranks = self._rerank_of_tei
            try:
                await self._part("weft", ["weft"])
            except EndpointError:
                raise refusal from None

    async def _answer(self, op: api.Op, answer: OpAnswer) -> None:
        """Send the op's texts in parts, and emit Finished. Raises EndpointError."""
        try:
            texts = texts_of(op)
            query = query_of(op) if op.kind == RERANK else None
        except InputRefused as refusal:
            raise EndpointError(refusal.error, str(refusal)) from None
        step, cut = self._config.batch, op.inputs.get("truncate_prompt_tokens")
        more = {} if cut is None else {"truncate_prompt_tokens": cut}
        parts = [texts[at : at + step] for at in range(0, len(texts), step)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._limited(query, part, more)) for part in parts]
        except* EndpointError as errors:
            raise _first(errors) from None
        rows = [row for task in tasks for row in task.result().rows]
        usage = api.Usage(
            prompt_tokens=sum(task.result().tokens for task in tasks),
            cached_tokens=0,
            output_tokens=0,
            started=answer.started,
            filled=time.monotonic(),
        )
        head = self._outbox.head(op.id, op.attempt)
        value = _value(op.kind, rows)
        reason = api.FinishReason.STOP
        self._outbox.put(api.Finished(**head, reason=reason, usage=usage, value=value))

    async def _limited(
        self, query: str | None, texts: Sequence[str], more: Mapping[str, Any]
    ) -> RemoteRows:
        async with self._free:
            return await self._part(query, texts, more)

    async def _part(
        self,
        query: str | None,
        texts: Sequence[str],
        more: Mapping[str, Any] | None = None,
    ) -> RemoteRows:
        """One vector or score for each text, in their order. Raises EndpointError."""
        named = {} if self._config.model is None else {"model": self._config.model}
        extra: dict[str, Any] = {**named, **(more or {})}
        if query is None:
            body = {**extra, "input": list(texts), "encoding_format": "float"}
            answer = await self.endpoint.post("/embeddings", body)
            rows = _ordered(answer.get("data"), "embedding", len(texts))
            return RemoteRows(
                [_vector(row) for row in rows], _counted(answer) or sum(map(size, texts))
            )
        part = await self._reranks(extra, query, texts)
        if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in part.rows):
            raise _wrong("scores that are not numbers")
        return part

    async def _rerank(self, extra: dict[str, Any], query: str, texts: Sequence[str]) -> RemoteRows:
        body = {**extra, "query": query, "documents": list(texts), "top_n": len(texts)}
        answer = await self.endpoint.post("/rerank", body)
        rows = _ordered(answer.get("results"), "relevance_score", len(texts))
        return RemoteRows(rows, _counted(answer) or sum(map(size, (query, *texts))))

    async def _rerank_of_tei(
        self, extra: dict[str, Any], query: str, texts: Sequence[str]
    ) -> RemoteRows:
        cut = {"truncate": True} if "truncate_prompt_tokens" in extra else {}
        body = {"query": query, "texts": list(texts), **cut}
        rows = await self.endpoint.post_for_list("/rerank", body)
        return RemoteRows(_ordered(rows, "score", len(texts)), sum(map(size, (query, *texts))))


def _counted(answer: Mapping[str, Any]) -> int | None:
    """The tokens that the endpoint counted: in OpenAI's and Jina's place, or in Cohere's."""
    usage, meta = answer.get("usage"), answer.get("meta")
    found = usage.get("total_tokens") if isinstance(usage, dict) else None
    if found is None and isinstance(meta, dict) and isinstance(meta.get("tokens"), dict):
        found = meta["tokens"].get("input_tokens")
    return found if isinstance(found, int) else None


def _ordered(rows: object, name: str, count: int) -> list[Any]:
    """The field `name` of each row, by the rows' indices. Raises EndpointError."""
    found: dict[int, Any] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("index"), int) and name in row:
            found[row["index"]] = row[name]
    if sorted(found) != list(range(count)):
        raise _wrong(f"{len(found)} results with {name!r} for {count} texts")
    return [found[at] for at in range(count)]


def _vector(row: object) -> arrays.Array:
    try:
        vector = np.asarray(row, dtype=np.float32)
    except (TypeError, ValueError):
        vector = np.zeros(0, np.float32)
    if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
        raise _wrong("a vector that is not a list of numbers")
    return vector


def _value(kind: str, rows: Sequence[Any]) -> object:
    if kind == RERANK:
        return {"scores": [float(row) for row in rows]}
    if len({len(row) for row in rows}) > 1:
        raise _wrong("vectors of different widths")
    return arrays.vectors_of(rows)


def _first(errors: ExceptionGroup[EndpointError]) -> EndpointError:
    first = errors.exceptions[0]
    return first if isinstance(first, EndpointError) else _first(first)


def _wrong(what: str) -> EndpointError:
    return EndpointError("EngineFailed", f"the endpoint sent {what}", broken=True)
