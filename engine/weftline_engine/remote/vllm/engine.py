"""The vllm engine: token ids in and out, with contexts on top of vLLM's prefix caching.

vLLM has no call to keep or free blocks, nor to change the order of what waits. A child that runs
our scheduler (`weftline_engine.remote.vllm.scheduler`) takes notes about both. For another vLLM
`retain` and `update` do nothing, and `free` only forgets the tokens. vLLM's KV events tell which
contexts its cache holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from weftline.contract.parameters import EngineApi
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointError
from weftline_engine.remote.openai.endpoint_constraints import structured_outputs
from weftline_engine.remote.openai.engine import (
    counts_of,
    finish_reason,
    first_choice,
    openai_sampling,
    served,
    stopped_by,
)
from weftline_engine.remote.openai.remote import AnswerPiece, AnswerTimes, TokenCounts
from weftline_engine.remote.openai.scheduling import EndpointScheduler, headers
from weftline_engine.remote.prefix_cache.borders import Borders, Prompt
from weftline_engine.remote.prefix_cache.engine import PrefixCacheEngine
from weftline_engine.remote.tokenizer_probe import check_tokenizer
from weftline_engine.remote.vllm.cache_size import (
    block_tokens,
    gauge_names,
    kv_blocks,
    kv_tokens,
    ranks,
)
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.few_places import goes_on_at_few_places
from weftline_engine.remote.vllm.host_memory import host_tokens
from weftline_engine.remote.vllm.notes import HintSocket
from weftline_engine.remote.vllm.vllm_child import Child
from weftline_engine.transport import wire

log = logging.getLogger("weftline.vllm")

# vLLM sends the text of an unread op in parts of this many tokens. A chat of 64 tokens took 5.0 to
# 7.3 ms of the server's CPU time with an event for each token, and 1.9 to 2.2 ms with such parts.
# A reader that comes later gets the text at most this many tokens late, because vLLM's front end
# takes the length of parts only with the request.
UNREAD_TOKENS = 16
# An unread answer of at most this many tokens comes whole, as one JSON object. For 64 tokens that
# took vLLM's front end 5.4 ms less CPU time of 39 than such parts, and the server 1.4 ms of 4.7. A
# longer one comes in parts, so that a vLLM that hangs is noticed, and the prompt that reads it is
# filled early.
WHOLE_TOKENS = 128
DEEPEST = 63  # larger depths count as this one
RANK_HEADER = "X-data-parallel-rank"
MANY_RANKS = (
    "vLLM has %d data-parallel ranks and chooses one for each call, so a call may not find its "
    "prefix: describe each rank as an [[engine]] with data_parallel_rank"
)


class VLLMEngine(PrefixCacheEngine):
    """An `api.Engine` on vLLM's HTTP interface."""

    def __init__(self, config: VLLMConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._child: Child | None = None
        self._root: Endpoint | None = None  # for /metrics, which is not under /v1
        self._watch: asyncio.Task[None] | None = None
        self._notes = HintSocket()  # to our scheduler in the child
        self._model = ""
        self._priority = config.connect is None
        self._tells_times = False  # an answer tells the times of its phases
        self._borders: Borders | None = None  # of prompts, where it goes on at few places
        # Fills of beginnings that several prompts have, by salt and tokens.
        self._fills: dict[Prompt, asyncio.Task[int]] = {}

    async def start(self) -> api.Description:
        """Start vLLM, or connect to a running one, and describe it. Raises EngineDied."""
        connect, rank = self._config.connect, self._config.rank
        if connect is None:
            self._child = Child(self._config)
            await self._child.start()
            where = self._child.endpoint
            connect = replace(where, url=f"{where.url}/v1")
            self._notes = self._child.notes
            self._pauses = self._tells_times = self._notes.are_read
        if rank is not None:
            connect = replace(connect, headers={RANK_HEADER: str(rank)})
        self._endpoint = Endpoint(connect)
        self._root = Endpoint(replace(connect, url=connect.url.rstrip("/").removesuffix("/v1")))
        wanted = self._config.served if self._child is None else self._config.announced
        try:
            self._model, limit = await served(self._endpoint, wanted)
            if self._child is None:
                await check_tokenizer(self._root, self._model, self._config.model)
                await self._try_fields()
        except EndpointError as error:
            await self.close()
            raise api.EngineDied(f"the engine did not start: {error}") from error
        if self._child is not None:
            self._watch = asyncio.create_task(self._watch_child(self._child))
        metrics = await self.metrics()
        if goes_on_at_few_places(self._config.model):
            self._borders = Borders(block_tokens(metrics) or 1)
        pool = kv_tokens(metrics, rank)
        if rank is not None and pool is None:
            await self.close()
            raise api.EngineDied(f"the engine did not start: vLLM has no data-parallel rank {rank}")
        if rank is None and (count := ranks(metrics)) > 1:
            log.warning(MANY_RANKS, count)
        events = self._config.kv_events if self._child is None else self._child.events
        if events is not None:
            at = events if rank is None else events.of_rank(rank)
            has_tails = self._borders is not None
            self._reports.listen(at, kv_blocks(metrics, rank), tails=has_tails)
        if not self._notes.are_read:
            # A child of ours has no other clients.
            self._watch_gauge(gauge_names(rank), pool if self._child is None else None)
        return self._description(limit, pool)

    @property
    def socket(self) -> str | None:
        """Path of the child's unix socket, or None without a child."""
        return None if self._child is None else self._child.endpoint.socket

    async def metrics(self) -> bytes:
        assert self._root is not None, "metrics before start"
        return await self._root.metrics()

    async def close(self) -> None:
        for task in (self._watch, *self._fills.values()):
            if task is not None:
                task.cancel()
        await super().close()
        if self._root is not None:
            await self._root.close()
        if self._child is not None:
            await self._child.close()

    def _description(self, limit: int | None, pool: int | None) -> api.Description:
        return api.Description(
            **self._described(self._config.model),
            model=self._config.announced,
            context_limit=min(filter(None, (limit, self._config.max_model_len)), default=8192),
            kv_tokens=pool,
            host_tokens=0
            if self._child is None
            else host_tokens(self._child.host_gib, self._config.model, self._config.dtype),
            max_running=self._config.max_running,
            dtype=self._config.dtype,
            wants_borders=self._borders is not None,
            capabilities=capabilities(
                self._child is not None, self._priority, self._pauses, self._reports.listens
            ),
        )

    async def _try_fields(self) -> None:
        """Find out whether a vLLM that we did not start schedules by priority, and whether its
        answers tell times. Without the first it answers 400."""
        body = self._fill_body((1,))
        try:
            answer = await self.endpoint.post("/completions", body | {"priority": 1})
            self._priority = True
        except EndpointError as error:
            if error.error != "InvalidRequest":
                raise
            answer = await self.endpoint.post("/completions", body)
        self._tells_times = times_of(answer) is not None

    async def _watch_child(self, child: Child) -> None:
        self._outbox.end(api.EngineDied(await child.wait()))

    def _spawn(self, op: api.Op) -> None:
        if self._borders is not None:
            self._borders.add(op.tokens or (), op.salt)
        super()._spawn(op)

    def _advise(self, verb: wire.Verb) -> None:
        """Pass the verb on to our scheduler. Another vLLM takes hints only with a request."""
        self._notes.send(verb)

    async def _fill_early(self, tokens: tuple[int, ...], op: api.Op) -> None:
        await self.endpoint.post("/completions", self._fill_body(tokens, op))

    async def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        filled = await self._fill_to_borders(op)
        async with aclosing(self._sent(op)) as pieces:
            async for piece in pieces:
                if filled and piece.counts is not None:
                    cached = max(0, piece.counts.cached - filled)
                    piece = replace(piece, counts=replace(piece.counts, cached=cached))
                yield piece

    async def _fill_to_borders(self, op: api.Op) -> int:
        """Fill what the op's prompt has in common with others, so that vLLM keeps the state there.
        The tokens that were computed so for this op. All ops of a turn have been noted before.

        Our scheduler keeps the state there while the prompt itself is computed.
        """
        if self._borders is None or self._notes.are_read:
            return 0
        tokens, computed = op.tokens or (), 0
        # A prompt that is sent beside such a fill may overtake it. Then the fill is for nothing:
        # six equal prompts of a Gemma 3 computed 2,557 tokens every fourth time, and else 1,565.
        running = {
            task
            for (salt, beginning), task in self._fills.items()
            if salt == op.salt and tokens[: len(beginning)] == beginning
        }
        if running:
            await asyncio.wait(running)
        # The first prompt of its kind keeps the state where its last turn begins.
        likely = op.guesses.borders[:1] if self._borders.is_new(tokens, op.salt) else ()
        for border in self._borders.of(tokens, op.salt, likely):
            beginning = op.salt, tokens[: border.end]
            is_first = beginning not in self._fills and not border.is_kept
            if is_first:
                # The last token of a prompt is always computed, so the state is kept before it.
                filled = tokens[: border.end + 1]
                self._borders.add(filled, op.salt)
                self._begin_fill(beginning, self._fill_border(filled, op))
            if (task := self._fills.get(beginning)) is not None:
                await asyncio.wait({task})
                computed += task.result() if is_first else 0
        return computed

    def _begin_fill(self, beginning: Prompt, fill: Coroutine[Any, Any, int]) -> None:
        self._fills[beginning] = task = asyncio.create_task(fill)
        task.add_done_callback(lambda _: self._fills.pop(beginning))

    async def _fill_border(self, tokens: tuple[int, ...], op: api.Op) -> int:
        """The tokens that were computed for a beginning, without the last one."""
        try:
            answer = await self.endpoint.post("/completions", self._fill_body(tokens, op))
        except EndpointError as error:
            # Nothing to report: the call itself will get the same error.
            if error.broken:
                self._count_failure(str(error))
            return 0
        counts = counts_of(answer)
        return len(tokens) - 1 - (0 if counts is None else counts.cached)

    async def _sent(self, op: api.Op) -> AsyncGenerator[AnswerPiece]:
        tokens = op.tokens or ()
        if op.kind == api.Kind.FILL:
            answer = await self.endpoint.post("/completions", self._fill_body(tokens, op))
            counts = counts_of(answer) or TokenCounts(len(tokens))
            yield AnswerPiece(reason=api.FinishReason.FILLED, counts=replace(counts, output=0))
            return
        body, names = self._body(op, tokens), headers(EndpointScheduler.VLLM, op)
        if self._comes_whole(op):
            yield await self._whole(op, body, names)
            return
        made: list[int] = []
        body |= {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if _is_unread(op):
            body["stream_interval"] = UNREAD_TOKENS  # a vLLM without this field ignores it
        async for event in self.endpoint.stream("/completions", body, names):
            piece = _piece(event, op.sampling.logprobs if op.sampling else None)
            if piece is not None:
                made += piece.tokens
                yield piece
        self._has_made(op, made)

    def _comes_whole(self, op: api.Op) -> bool:
        """Whether nobody needs a part of the answer early, and its times are told anyway."""
        assert op.sampling is not None, "a generate has sampling parameters"
        is_short = op.sampling.max_tokens <= WHOLE_TOKENS
        return self._tells_times and _is_unread(op) and is_short

    async def _whole(self, op: api.Op, body: dict[str, Any], names: dict[str, str]) -> AnswerPiece:
        """The answer as one piece. It may take as long as all parts of a stream together.

        The piece has ids only if a tool's result may continue the answer, or if it may have marks,
        because vLLM then sends back the prompt's ids, too.
        """
        assert op.sampling is not None, "a generate has sampling parameters"
        has_ids = bool(op.sampling.pause_on or op.sampling.marks)
        if has_ids:
            body["return_token_ids"] = True
        patience, parts = self.endpoint.config, -(-_longest(op) // UNREAD_TOKENS)
        within_s = patience.first_s + parts * patience.idle_s
        answer = await self.endpoint.post("/completions", body, names, within_s)
        choice = first_choice(answer)
        text = None if choice is None else choice.get("text")
        ids = () if choice is None or not has_ids else choice.get("token_ids")
        if choice is None or not isinstance(text, str) or not isinstance(ids, list | tuple):
            raise EndpointError("EngineFailed", "vLLM sent no answer", retryable=True, broken=True)
        if has_ids:
            self._has_made(op, ids)
        else:  # the context's tokens are not known, so no op may continue it as its parent
            self._contexts.pop(op.context, None)
        return AnswerPiece(
            text=text,
            tokens=tuple(ids),
            reason=finish_reason(choice.get("finish_reason")),
            counts=counts_of(answer),
            times=times_of(answer),
            stopped_by=stopped_by(choice),
        )

    def _body(self, op: api.Op, tokens: tuple[int, ...]) -> dict[str, Any]:
        assert op.sampling is not None, "a generate has sampling parameters"
        body = {
            "model": self._model,
            "prompt": tokens,
            **openai_sampling(op.sampling, EngineApi.VLLM),
        }
        if op.sampling.logprobs is not None:
            body |= {"logprobs": op.sampling.logprobs, "return_tokens_as_token_ids": True}
        if op.sampling.constraint is not None:
            body["structured_outputs"] = structured_outputs(op.sampling.constraint)
        if op.salt:
            body["cache_salt"] = op.salt
        if self._priority:
            body["priority"] = priority(op.hints)
        return body | self._names(op, tokens)

    def _fill_body(self, tokens: tuple[int, ...], op: api.Op | None = None) -> dict[str, Any]:
        """Return a request that only fills the prompt. vLLM generates at least one token."""
        body = {"model": self._model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
        if op is None:
            return body
        if op.salt:
            body["cache_salt"] = op.salt
        return body | self._names(op, tokens)

    def _names(self, op: api.Op, tokens: tuple[int, ...]) -> dict[str, Any]:
        """The request fields by which our scheduler finds the hints of an op, its context, and
        where other prompts part from it."""
        if not self._notes.are_read:
            return {}
        names: dict[str, Any] = {
            "weftline_op": op.id,
            "weftline_context": op.context,
            "weftline_application": op.hints.application,
            "weftline_returns": op.guesses.returns,
        }
        if self._borders is not None:
            borders = self._borders.of(tokens, op.salt, op.guesses.borders)
            names["weftline_borders"] = [one.end for one in borders]
        return {"vllm_xargs": names}


def _is_unread(op: api.Op) -> bool:
    """Whether nobody reads a part of the answer. Each token's probability comes with its event."""
    return op.hints.unread and op.sampling is not None and op.sampling.logprobs is None


def times_of(answer: Mapping[str, Any]) -> AnswerTimes | None:
    """The times of an answer's phases, or None if vLLM does not tell them."""
    told = answer.get("metrics")
    if not isinstance(told, dict):
        return None
    fill, generate = told.get("time_to_first_token_ms"), told.get("generation_time_ms")
    if not isinstance(fill, float | int) or not isinstance(generate, float | int):
        return None
    return AnswerTimes(fill / 1e3, generate / 1e3)


def _longest(op: api.Op) -> int:
    return 0 if op.sampling is None else op.sampling.max_tokens


def capabilities(
    child: bool, priority: bool, retains: bool, reports: bool
) -> tuple[api.Capability, ...]:
    """Return the capabilities of a vLLM. Only a child of ours surely reports its cached tokens.

    `retains` says that our scheduler runs in it, which keeps contexts and takes updates. `reports`
    says that its KV events are heard.
    """
    lacks = set()
    if not reports:
        lacks.add(api.Capability.REPORTS)
    if not retains:
        lacks |= {api.Capability.RETENTION, api.Capability.UPDATES}
    if not child:
        lacks.add(api.Capability.USAGE)
    if not priority:
        lacks.add(api.Capability.PRIORITY)
    return tuple(one for one in api.Capability if one not in lacks)


def priority(hints: api.Hints) -> int:
    """Return the hints as vLLM's priority number. Lower numbers go first.

    The order is the server policy's: the application with the earliest turn goes first, and within
    it the deepest call. Turns are told apart by tenths of a second.
    """
    return round(10 * hints.turn) * (DEEPEST + 1) + DEEPEST - min(hints.depth, DEEPEST)


def _piece(event: dict[str, Any], alternatives: int | None) -> AnswerPiece | None:
    choice, counts = first_choice(event), counts_of(event)
    if choice is None:
        return None if counts is None else AnswerPiece(counts=counts, times=times_of(event))
    text, tokens = choice.get("text"), choice.get("token_ids")
    if not isinstance(text, str) or not isinstance(tokens, list):
        raise EndpointError(
            "EngineFailed", "vLLM returned no token ids: use a newer vLLM", broken=True
        )
    reason, stop = finish_reason(choice.get("finish_reason")), stopped_by(choice)
    if alternatives is None:
        return AnswerPiece(
            text=text, tokens=tuple(tokens), reason=reason, counts=counts, stopped_by=stop
        )
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
        stopped_by=stop,
    )


def _likeliest(top: dict[str, float], count: int) -> list[tuple[int, float]]:
    """Return the `count` likeliest of vLLM's {"token_id:7": -0.1, …}.

    The object has one entry more if the sampled token is not among them.
    """
    best = sorted(top.items(), key=lambda one: -one[1])[:count]
    return [(int(name.removeprefix("token_id:")), value) for name, value in best]
