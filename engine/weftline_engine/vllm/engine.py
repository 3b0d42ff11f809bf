"""The vllm engine: token ids in and out, with contexts on top of vLLM's prefix caching.

A context is the list of its tokens. vLLM itself finds the KV blocks that it still holds for a
prompt. So a fill is a request for one token, which leaves the prompt's blocks in the cache, and a
fork is a prompt with the same prefix. vLLM has no call to keep or free blocks, nor to change the
order of what waits. A child that runs our scheduler (`weftline_engine.vllm.scheduler`) takes notes
about both. For another vLLM `retain` and `update` do nothing, and `free` only forgets the tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from weftline_engine import api
from weftline_engine.model_texts import default_sampling, tokenizer_texts
from weftline_engine.openai.constraints import structured_outputs
from weftline_engine.openai.endpoint import Endpoint, EndpointError
from weftline_engine.openai.engine import (
    counts_of,
    extra_sampling,
    finish_reason,
    first_choice,
    openai_sampling,
    served,
)
from weftline_engine.openai.remote import AnswerPiece, RemoteEngine, TokenCounts
from weftline_engine.openai.scheduling import EndpointScheduler, headers
from weftline_engine.transport import wire
from weftline_engine.vllm.child import Child
from weftline_engine.vllm.config import VLLMConfig
from weftline_engine.vllm.gauge import EVERY_S, Gauge, GaugeReader
from weftline_engine.vllm.notes import HintSocket
from weftline_engine.vllm.open_prompts import WARM_TOKENS, OpenPrompt, OpenPrompts

# One second of an application's age counts as this many tokens of work less. So no call starves.
AGE_TOKENS = 256
# A throughput call is ordered as if it arrived a minute later.
THROUGHPUT_TOKENS = 60 * AGE_TOKENS
# vLLM sends the text of an unread op in parts of this many tokens. A chat of 64 tokens took 5.0 to
# 7.3 ms of the server's CPU time with an event for each token, and 1.9 to 2.2 ms with such parts.
# A reader that comes later gets the text at most this many tokens late.
UNREAD_TOKENS = 16
DEEPEST = 63  # larger depths count as this one


class VLLMEngine(RemoteEngine):
    """An `api.Engine` on vLLM's HTTP interface."""

    def __init__(self, config: VLLMConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._child: Child | None = None
        self._root: Endpoint | None = None  # for /metrics, which is not under /v1
        self._watch: asyncio.Task[None] | None = None
        self._notes = HintSocket()  # to our scheduler in the child
        self._model = ""
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._open = OpenPrompts()
        self._priority = config.connect is None
        self._meter: GaugeReader | None = None  # of a vLLM without our scheduler

    async def start(self) -> api.Description:
        """Start vLLM, or connect to a running one, and describe it. Raises EngineDied."""
        connect = self._config.connect
        if connect is None:
            self._child = Child(self._config)
            await self._child.start()
            connect = self._child.endpoint
            self._notes = self._child.notes
            self._pauses = self._notes.are_read
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
        pool = kv_tokens(await self.metrics())
        if not self._notes.are_read:
            seen = partial(self._count_others, pool if self._child is None else None)
            self._meter = GaugeReader(self.metrics, lambda: len(self._ops), seen, EVERY_S)
        return self._description(limit, pool)

    def submit(self, op: api.Op) -> None:
        self._ops[op.id] = op
        if op.parent is not None and op.parent not in self._contexts:
            del self._ops[op.id]
            self.fail(op, "InvalidRequest", f"context {op.parent} does not exist")
            return
        tokens = (*self._contexts.get(op.parent or "", ()), *(op.tokens or ()))
        self._contexts[op.context] = tokens
        self._notes.send(wire.Update(op.id, op.hints))
        if self._meter is not None:
            self._meter.start()
        if op.open:
            self._warm(self._open.add(op, tokens))
        else:
            self._spawn(replace(op, tokens=tokens))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        found = self._open.get(op)
        if found is None:
            return  # the op was cancelled
        assert isinstance(part, tuple), "this engine takes token ids"
        found.tokens += part
        if not last:
            self._warm(found)
            return
        self._open.pop(op)
        tokens = self._contexts[found.op.context] = tuple(found.tokens)
        whole = replace(found.op, tokens=tokens, open=False)
        self._ops[op] = whole
        self._spawn(whole)

    def update(self, op: str, hints: api.Hints) -> None:
        """Pass the hints on to our scheduler. Another vLLM takes them only with the request."""
        if found := self._open.get(op):
            found.op = replace(found.op, hints=hints)
        self._notes.send(wire.Update(op, hints))

    def cancel(self, op: str) -> None:
        if (found := self._open.pop(op)) and found.warming:
            found.warming.cancel()
        super().cancel(op)

    def retain(self, context: str, retention: api.Retention) -> None:
        """Pass the wish on to our scheduler. Another vLLM manages its KV cache alone."""
        self._notes.send(wire.Retain(context, retention))

    def free(self, context: str) -> None:
        """Forget the context's tokens. vLLM evicts its blocks when it needs memory."""
        self._contexts.pop(context, None)
        self._notes.send(wire.Free(context))

    @property
    def socket(self) -> str | None:
        """Path of the child's unix socket, or None without a child."""
        return None if self._child is None else self._child.endpoint.socket

    async def metrics(self) -> bytes:
        """Return vLLM's own metrics, or b"" if it does not answer."""
        assert self._root is not None, "metrics before start"
        try:
            status, body = await self._root.get("/metrics")
        except EndpointError:
            return b""
        return body if status == 200 else b""

    async def close(self) -> None:
        for task in (self._watch, *self._open.busy()):
            if task is not None:
                task.cancel()
        if self._meter is not None:
            self._meter.stop()
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
            fill_tokens=WARM_TOKENS,
            dtype=self._config.dtype,
            default_sampling=default_sampling(directory),
            capabilities=capabilities(self._child is not None, self._priority, self._pauses),
        )

    async def _takes_priority(self) -> bool:
        """Return whether a vLLM that we did not start schedules by priority. Others answer 400."""
        try:
            await self.endpoint.post("/completions", self._fill_body((1,)) | {"priority": 1})
        except EndpointError as error:
            if error.error != "InvalidRequest":
                raise
            return False
        return True

    async def _watch_child(self, child: Child) -> None:
        self._outbox.end(api.EngineDied(await child.wait()))

    def _count_others(self, pool: int | None, gauge: Gauge, requests: int) -> None:
        """Tell the server how much of the `pool` other clients of this vLLM hold."""
        if pool is None:
            return  # a child of ours has no other clients
        own = sum(len(op.tokens or ()) + _longest(op) for op in self._ops.values())
        others = gauge.others(pool, requests, own)
        self._outbox.put(api.Occupied(**self._outbox.head("", 0), tokens=others))

    def _warm(self, found: OpenPrompt) -> None:
        """Fill the known prefix of an open prompt early, one request at a time."""
        if self._meter is not None and not self._meter.last.has_room:
            return
        whole = self._open.due(found)
        if whole is None:
            return
        # The filled blocks are kept, because the call itself will come.
        self._notes.send(wire.Retain(found.op.context, api.Retention.KEEP))
        body = self._fill_body(tuple(found.tokens[: whole + 1]), found.op)
        found.warming = asyncio.create_task(self._warm_with(body))

    async def _warm_with(self, body: dict[str, Any]) -> None:
        try:
            await self.endpoint.post("/completions", body)
        except EndpointError as error:
            # Nothing to report: the call itself will get the same error.
            if error.broken:
                self._count_failure(str(error))

    async def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        tokens = op.tokens or ()
        if op.kind == api.Kind.FILL:
            answer = await self.endpoint.post("/completions", self._fill_body(tokens, op))
            counts = counts_of(answer) or TokenCounts(len(tokens))
            yield AnswerPiece(reason=api.FinishReason.FILLED, counts=replace(counts, output=0))
            return
        made: list[int] = []
        body = self._body(op, tokens)
        async for event in self.endpoint.stream(
            "/completions",
            body,
            f"{op.id}.{op.attempt}",
            op.hints.traceparent,
            headers(EndpointScheduler.VLLM, op.hints),
        ):
            piece = _piece(event, op.sampling.logprobs if op.sampling else None)
            if piece is not None:
                made += piece.tokens
                yield piece
        if op.context in self._contexts:
            self._contexts[op.context] = (*tokens, *made)

    def _body(self, op: api.Op, tokens: tuple[int, ...]) -> dict[str, Any]:
        assert op.sampling is not None, "a generate has sampling parameters"
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
            body["top_k"] = 0  # without it vLLM uses the default of the model's config
        if op.sampling.logprobs is not None:
            body |= {"logprobs": op.sampling.logprobs, "return_tokens_as_token_ids": True}
        if op.sampling.constraint is not None:
            body["structured_outputs"] = structured_outputs(op.sampling.constraint)
        if op.salt:
            body["cache_salt"] = op.salt
        if self._priority:
            body["priority"] = priority(op.hints)
        if op.hints.unread and op.sampling.logprobs is None:
            body["stream_interval"] = UNREAD_TOKENS  # a vLLM without this field ignores it
        return body | _names(op, self._notes)

    def _fill_body(self, tokens: tuple[int, ...], op: api.Op | None = None) -> dict[str, Any]:
        """Return a request that only fills the prompt. vLLM generates at least one token."""
        body = {"model": self._model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
        if op is None:
            return body
        if op.salt:
            body["cache_salt"] = op.salt
        return body | _names(op, self._notes)


def _names(op: api.Op, notes: HintSocket) -> dict[str, Any]:
    """The request fields by which our scheduler finds the hints of an op and its context."""
    if not notes.are_read:
        return {}
    names = {
        "weftline_op": op.id,
        "weftline_context": op.context,
        "weftline_application": op.hints.application,
    }
    return {"vllm_xargs": names}


def _longest(op: api.Op) -> int:
    return 0 if op.sampling is None else op.sampling.max_tokens


def capabilities(child: bool, priority: bool, retains: bool) -> tuple[api.Capability, ...]:
    """Return the capabilities of a vLLM. Only a child of ours surely reports its cached tokens.

    `retains` says that our scheduler runs in it, which keeps contexts.
    """
    lacks = {api.Capability.REPORTS}
    if not retains:
        lacks.add(api.Capability.RETENTION)
    if not child:
        lacks.add(api.Capability.USAGE)
    if not priority:
        lacks.add(api.Capability.PRIORITY)
    return tuple(one for one in api.Capability if one not in lacks)


def priority(hints: api.Hints) -> int:
    """Return the hints as vLLM's priority number. Lower numbers go first.

    The order is the server policy's: the application with the least work left goes first, and
    within it the deepest call. Each second of earlier arrival counts as AGE_TOKENS less work.
    """
    work = hints.work_left + int(AGE_TOKENS * hints.arrival)
    if hints.criterion == "throughput":
        work += THROUGHPUT_TOKENS
    return work * (DEEPEST + 1) + DEEPEST - min(hints.depth, DEEPEST)


def _piece(event: dict[str, Any], alternatives: int | None) -> AnswerPiece | None:
    choice, counts = first_choice(event), counts_of(event)
    if choice is None:
        return None if counts is None else AnswerPiece(counts=counts)
    text, tokens = choice.get("text"), choice.get("token_ids")
    if not isinstance(text, str) or not isinstance(tokens, list):
        raise EndpointError(
            "EngineFailed", "vLLM returned no token ids: use a newer vLLM", broken=True
        )
    reason = finish_reason(choice.get("finish_reason"))
    if alternatives is None:
        return AnswerPiece(text=text, tokens=tuple(tokens), reason=reason, counts=counts)
    logprobs = choice.get("logprobs") or {"token_logprobs": [], "top_logprobs": []}
    tops = [_likeliest(top, alternatives) for top in logprobs["top_logprobs"]]
    return AnswerPiece(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs["token_logprobs"]),
        top_tokens=tuple(token for top in tops for token, _ in top),
        top_logprobs=tuple(value for top in tops for _, value in top),
        reason=reason,
        counts=counts,
    )


def _likeliest(top: dict[str, float], count: int) -> list[tuple[int, float]]:
    """Return the `count` likeliest of vLLM's {"token_id:7": -0.1, …}.

    The object has one entry more if the sampled token is not among them.
    """
    best = sorted(top.items(), key=lambda one: -one[1])[:count]
    return [(int(name.removeprefix("token_id:")), value) for name, value in best]


def kv_tokens(metrics: bytes) -> int | None:
    """Return the tokens that vLLM's KV cache holds, over all data-parallel engines.

    `metrics` is the text of GET /metrics. None if it does not state the size, or is not valid.
    """
    try:
        families = [
            family
            for family in text_string_to_metric_families(metrics.decode(errors="replace"))
            if family.name == "vllm:cache_config_info"
        ]
    except (ValueError, KeyError, IndexError):  # the parser's errors for other text
        return None
    sizes = [_cache_tokens(sample.labels) for family in families for sample in family.samples]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _cache_tokens(labels: Mapping[str, str]) -> int | None:
    """Return the tokens of one engine's cache, or None if they are not stated.

    vLLM 0.32 states tokens. Earlier versions state blocks and tokens per block, which gives the
    same number if all layers of the model are alike.
    """
    if tokens := _count(labels.get("kv_cache_size_tokens")):
        return tokens
    blocks, size = _count(labels.get("num_gpu_blocks")), _count(labels.get("block_size"))
    return blocks * size if blocks and size else None


def _count(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None
