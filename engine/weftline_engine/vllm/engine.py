"""The vllm engine: token ids both ways, contexts on vLLM's automatic prefix caching.

A context is the list of its tokens. vLLM finds by itself what of them is still in its blocks, so a
fill is a request for one token that leaves its blocks behind, a fork is a prompt that begins alike,
and freeing and keeping are advice that it has no ear for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from weftline_engine import api
from weftline_engine.model_texts import default_sampling, tokenizer_texts
from weftline_engine.openai.endpoint import Endpoint, EndpointError
from weftline_engine.openai.engine import (
    counts_of,
    extra_sampling,
    finish_reason,
    first_choice,
    openai_sampling,
    served,
)
from weftline_engine.openai.remote import Counts, Piece, RemoteEngine
from weftline_engine.vllm.child import Child
from weftline_engine.vllm.config import VLLMConfig
from weftline_engine.vllm.pool import kv_tokens

# A block of vLLM's on a CPU, and some on a GPU: of an open prompt only whole ones are worth a
# request, as the call itself computes again what is left over.
WARM_TOKENS = 128
# One second of an application's age is worth so many tokens of work: it cannot starve.
AGE_TOKENS = 256
# A throughput call comes after every latency call of the minute before and after it.
THROUGHPUT_TOKENS = 60 * AGE_TOKENS
DEEPEST = 63


@dataclass(slots=True)
class _Open:
    """A prompt that is still growing; `warmed` of its tokens have been sent ahead."""

    op: api.Op
    tokens: list[int]
    warmed: int = 0
    warming: asyncio.Task[None] | None = field(default=None, repr=False)


class VLLMEngine(RemoteEngine):
    """An `api.Engine` on vLLM's HTTP interface."""

    def __init__(self, config: VLLMConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._child: Child | None = None
        self._root: Endpoint | None = None  # /metrics stands outside /v1
        self._watch: asyncio.Task[None] | None = None
        self._model = ""
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, _Open] = {}
        self._priority = config.connect is None

    async def start(self) -> api.Description:
        """Start vLLM, or find the one that runs, and describe it. Raises EngineDied."""
        connect = self._config.connect
        if connect is None:
            self._child = Child(self._config)
            await self._child.start()
            connect = self._child.endpoint
        self._endpoint = Endpoint(connect)
        self._root = Endpoint(replace(connect, url=connect.url.rstrip("/").removesuffix("/v1")))
        wanted = self._config.served if self._child is None else self._config.announced
        try:
            self._model, limit = await served(self._endpoint, wanted)
            if self._child is None:
                self._priority = await self._takes_priority()
        except EndpointError as error:
            await self.close()
            raise api.EngineDied(f"the engine did not start: {error}") from error
        if self._child is not None:
            self._watch = asyncio.create_task(self._watch_child(self._child))
        return self._description(limit, kv_tokens(await self.metrics()))

    def submit(self, op: api.Op) -> None:
        self._ops[op.id] = op
        if op.parent is not None and op.parent not in self._contexts:
            del self._ops[op.id]
            self.fail(op, "InvalidRequest", f"context {op.parent} does not exist")
            return
        tokens = (*self._contexts.get(op.parent or "", ()), *(op.tokens or ()))
        self._contexts[op.context] = tokens
        if op.open:
            self._open[op.id] = _Open(op, list(tokens))
            self._warm(self._open[op.id])
        else:
            self._spawn(replace(op, tokens=tokens))

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None:
        found = self._open.get(op)
        if found is None:
            return  # it was cancelled
        assert not isinstance(part, str), "this engine takes token ids"
        found.tokens += part
        if not last:
            self._warm(found)
            return
        del self._open[op]
        tokens = self._contexts[found.op.context] = tuple(found.tokens)
        whole = replace(found.op, tokens=tokens, open=False)
        self._ops[op] = whole
        self._spawn(whole)

    def cancel(self, op: str) -> None:
        if (found := self._open.pop(op, None)) and found.warming:
            found.warming.cancel()
        super().cancel(op)

    def free(self, context: str) -> None:
        """Forget the context's tokens; its blocks are the first that vLLM takes when it needs."""
        self._contexts.pop(context, None)

    @property
    def socket(self) -> str | None:
        """Where the child listens."""
        return None if self._child is None else self._child.endpoint.socket

    async def metrics(self) -> bytes:
        """vLLM's own, under its own names."""
        assert self._root is not None, "metrics before start"
        try:
            status, body = await self._root.get("/metrics")
        except EndpointError:
            return b""
        return body if status == 200 else b""

    async def close(self) -> None:
        for task in (self._watch, *(one.warming for one in self._open.values())):
            if task is not None:
                task.cancel()
        await super().close()
        if self._root is not None:
            await self._root.close()
        if self._child is not None:
            await self._child.close()

    def _description(self, limit: int | None, pool: int | None) -> api.Description:
        directory = self._config.model
        texts = tokenizer_texts(directory)
        return api.Description(
            model=self._config.announced,
            tokenizer=str(directory / "tokenizer.json"),
            chat_template=texts["chat_template"] or None,
            bos_token=texts["bos_token"],
            eos_token=texts["eos_token"],
            context_limit=limit or self._config.max_model_len or 8192,
            kv_tokens=pool,
            max_running=self._config.max_running,
            dtype=self._config.dtype,
            default_sampling=default_sampling(directory),
            capabilities=capabilities(self._child is not None, self._priority),
        )

    async def _takes_priority(self) -> bool:
        """Whether a vLLM that is not ours schedules by priority: others refuse one with 400."""
        try:
            await self.endpoint.post("/completions", self._fill_body((1,), "") | {"priority": 1})
        except EndpointError as error:
            if error.error != "InvalidRequest":
                raise
            return False
        return True

    async def _watch_child(self, child: Child) -> None:
        self._events.put_nowait(api.EngineDied(await child.wait()))

    def _warm(self, found: _Open) -> None:
        """Send what is known ahead, one request at a time; nobody waits for it."""
        busy = found.warming is not None and not found.warming.done()
        # vLLM computes the last token of every prompt, with its whole block: one more token saves
        # that where several calls begin alike, of which the first has left the blocks behind.
        whole = (len(found.tokens) - 1) // WARM_TOKENS * WARM_TOKENS
        if busy or whole <= found.warmed:
            return
        found.warmed = whole
        body = self._fill_body(tuple(found.tokens[: whole + 1]), found.op.salt)
        found.warming = asyncio.create_task(self._warm_with(body))

    async def _warm_with(self, body: dict[str, Any]) -> None:
        try:
            await self.endpoint.post("/completions", body)
        except EndpointError as error:
            # The call itself will meet the same, and tells.
            if error.broken:
                self._count_failure(str(error))

    async def _pieces(self, op: api.Op) -> AsyncIterator[Piece]:
        tokens = op.tokens or ()
        if op.kind == api.Kind.FILL:
            answer = await self.endpoint.post("/completions", self._fill_body(tokens, op.salt))
            counts = counts_of(answer) or Counts(len(tokens))
            yield Piece(reason=api.FinishReason.FILLED, counts=replace(counts, output=0))
            return
        made: list[int] = []
        body = self._body(op, tokens)
        async for event in self.endpoint.stream("/completions", body, f"{op.id}.{op.attempt}"):
            piece = _piece(event, op.sampling.logprobs if op.sampling else None)
            if piece is not None:
                made += piece.tokens
                yield piece
        if op.context in self._contexts:
            self._contexts[op.context] = (*tokens, *made)

    def _body(self, op: api.Op, tokens: tuple[int, ...]) -> dict[str, Any]:
        assert op.sampling is not None, "a generate says how to sample"
        body = {
            "model": self._model,
            "prompt": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **openai_sampling(op.sampling),
            **extra_sampling(op.sampling),
        }
        if op.sampling.top_k == 0:
            body["top_k"] = 0  # else the model's own would be taken
        if op.sampling.logprobs is not None:
            body |= {"logprobs": op.sampling.logprobs, "return_tokens_as_token_ids": True}
        if op.sampling.constraint is not None:
            body["structured_outputs"] = _structured(op.sampling.constraint)
        if op.salt:
            body["cache_salt"] = op.salt
        if self._priority:
            body["priority"] = priority(op.hints)
        return body

    def _fill_body(self, tokens: tuple[int, ...], salt: str) -> dict[str, Any]:
        """A request that leaves the prompt's blocks behind; vLLM cannot generate less than one."""
        body = {"model": self._model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
        return {**body, "cache_salt": salt} if salt else body


def capabilities(child: bool, priority: bool) -> tuple[api.Capability, ...]:
    """What vLLM can do: only our own child is sure to run with what makes it count its cache."""
    lacks = {api.Capability.RETENTION, api.Capability.REPORTS}
    if not child:
        lacks.add(api.Capability.USAGE)
    if not priority:
        lacks.add(api.Capability.PRIORITY)
    return tuple(one for one in api.Capability if one not in lacks)


def priority(hints: api.Hints) -> int:
    """The plan as vLLM's number, of which the lower goes first.

    Like the policy's order: the application with the least work left, in it the call furthest from
    the answer; an application that came earlier by a second counts as shorter by AGE_TOKENS.
    """
    work = hints.work_left + int(AGE_TOKENS * hints.arrival)
    if hints.criterion == "throughput":
        work += THROUGHPUT_TOKENS
    return work * (DEEPEST + 1) + DEEPEST - min(hints.depth, DEEPEST)


def _structured(constraint: str) -> dict[str, Any]:
    wish: dict[str, Any] = json.loads(constraint)
    return {"json": wish["json_schema"]} if "json_schema" in wish else wish


def _piece(event: dict[str, Any], alternatives: int | None) -> Piece | None:
    choice, counts = first_choice(event), counts_of(event)
    if choice is None:
        return None if counts is None else Piece(counts=counts)
    text, tokens = choice.get("text"), choice.get("token_ids")
    if not isinstance(text, str) or not isinstance(tokens, list):
        raise EndpointError(
            "EngineFailed", "vLLM returned no token ids: it is too old", broken=True
        )
    reason = finish_reason(choice.get("finish_reason"))
    if alternatives is None:
        return Piece(text=text, tokens=tuple(tokens), reason=reason, counts=counts)
    logprobs = choice.get("logprobs") or {"token_logprobs": [], "top_logprobs": []}
    tops = [_likeliest(top, alternatives) for top in logprobs["top_logprobs"]]
    return Piece(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs["token_logprobs"]),
        top_tokens=tuple(token for top in tops for token, _ in top),
        top_logprobs=tuple(value for top in tops for _, value in top),
        reason=reason,
        counts=counts,
    )


def _likeliest(top: dict[str, float], count: int) -> list[tuple[int, float]]:
    """The `count` best of vLLM's {"token_id:7": -0.1, …}, which holds the sampled one besides."""
    best = sorted(top.items(), key=lambda one: -one[1])[:count]
    return [(int(name.removeprefix("token_id:")), value) for name, value in best]
