"""The base of engines whose contexts are prefixes in the cache of another server.

A context is the list of its tokens. The server itself finds the KV that it still holds for a
prompt. So a fill is a request for one token, which leaves the prompt in the cache, and a fork is a
prompt with the same prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from weftline_engine import api
from weftline_engine.own.model_texts import default_sampling, tokenizer_texts
from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.remote import RemoteEngine
from weftline_engine.remote.prefix_cache.context_reports import ContextReports
from weftline_engine.remote.prefix_cache.gauge import Gauge, GaugeNames, GaugeReader
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS, OpenPrompt, OpenPrompts
from weftline_engine.transport import wire


class PrefixCacheEngine(RemoteEngine):
    """The contexts, the prompts that are still open, and the reports of what is cached.

    A subclass sends prompts in `_pieces` and `_fill_early`. It may have a way to tell the server
    hints and retention. With `_watch_gauge` it fills nothing early in a full cache.
    """

    def __init__(self, breaker: BreakerConfig) -> None:
        super().__init__(breaker)
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._open = OpenPrompts()
        self._reports = ContextReports(self._outbox, self._ops.__contains__)
        self._meter: GaugeReader | None = None

    async def metrics(self) -> bytes:
        return await self.endpoint.metrics()

    def submit(self, op: api.Op) -> None:
        if self._meter is not None:
            self._meter.start()
        if op.kind not in (api.Kind.FILL, api.Kind.GENERATE):
            self.fail(op, "InvalidRequest", f"this engine runs no ops of the kind {op.kind}")
            return
        self._ops[op.id] = op
        if op.parent is not None and op.parent not in self._contexts:
            del self._ops[op.id]
            self.fail(op, "InvalidRequest", f"context {op.parent} does not exist")
            return
        op = op.behind(self._contexts.get(op.parent or "", ()))
        tokens = self._contexts[op.context] = op.tokens or ()
        self._advise(wire.Update(op.id, op.hints))
        if op.open:
            self._warm(self._open.add(op, tokens))
        else:
            self._reports.follow(op, tokens)
            self._spawn(op)

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
        self._reports.follow(whole, tokens)
        self._spawn(whole)

    def update(self, op: str, hints: api.Hints) -> None:
        """Pass the hints on, if the server takes them after the request."""
        if found := self._open.get(op):
            found.op = replace(found.op, hints=hints)
        self._advise(wire.Update(op, hints))

    def cancel(self, op: str) -> None:
        if (found := self._open.pop(op)) and found.warming:
            found.warming.cancel()
        super().cancel(op)

    def retain(self, context: str, retention: api.Retention) -> None:
        """Pass the wish on. A server that takes none manages its KV cache alone."""
        self._advise(wire.Retain(context, retention))

    def free(self, context: str) -> None:
        """Forget the context's tokens. The server evicts its KV when it needs memory."""
        self._contexts.pop(context, None)
        self._advise(wire.Free(context))

    async def close(self) -> None:
        if self._meter is not None:
            self._meter.stop()
        for task in self._open.busy():
            task.cancel()
        self._reports.close()
        await super().close()

    def _advise(self, verb: wire.Verb) -> None:
        """Tell the server a verb that no request carries."""

    def _watch_gauge(self, names: GaugeNames, pool: int | None) -> None:
        """Read the server's metrics while ops run. `pool` has the tokens of a cache that other
        clients use, too."""
        seen = partial(self._count_others, pool)
        self._meter = GaugeReader(self.metrics, lambda: len(self._ops), seen, names)

    def _count_others(self, pool: int | None, gauge: Gauge, requests: int) -> None:
        """Tell our server how much of the `pool` other clients hold."""
        if pool is None:
            return
        own = sum(
            len(op.tokens or ()) + (op.sampling.max_tokens if op.sampling else 0)
            for op in self._ops.values()
        )
        others = gauge.others(pool, requests, own)
        self._outbox.put(api.Occupied(**self._outbox.head("", 0), tokens=others))

    @staticmethod
    def _described(directory: Path) -> dict[str, Any]:
        """The fields of a description that are alike for all models in a directory."""
        texts = tokenizer_texts(directory)
        return {
            "tokenizer": str(directory / "tokenizer.json"),
            "chat_template": texts["chat_template"] or None,
            "bos_token": texts["bos_token"],
            "eos_token": texts["eos_token"],
            "fill_tokens": WARM_TOKENS,
            "default_sampling": default_sampling(directory),
        }

    async def _fill_early(self, tokens: tuple[int, ...], op: api.Op) -> None:
        """Fill the beginning of the op's prompt. Raises EndpointError."""
        raise NotImplementedError

    def _has_made(self, op: api.Op, tokens: Iterable[int]) -> None:
        """Note the tokens that an op has generated: a next op may continue them."""
        prompt = self._contexts.get(op.context)
        if prompt is not None:
            self._contexts[op.context] = (*prompt, *tokens)
        self._reports.follow(op, (*(op.tokens or ()), *tokens))

    def _ended(self, op: api.Op, task: asyncio.Task[None]) -> None:
        super()._ended(op, task)
        self._reports.report()

    def _warm(self, found: OpenPrompt) -> None:
        """Fill the known prefix of an open prompt early, one request at a time."""
        if self._meter is not None and not self._meter.last.has_room:
            return
        whole = self._open.due(found)
        if whole is None:
            return
        # What is filled is kept, because the call itself will come.
        self._advise(wire.Retain(found.op.context, api.Retention.KEEP))
        tokens = tuple(found.tokens[: whole + 1])
        found.warming = asyncio.create_task(self._warm_with(tokens, found.op))

    async def _warm_with(self, tokens: tuple[int, ...], op: api.Op) -> None:
        try:
            await self._fill_early(tokens, op)
        except EndpointError as error:
            # Nothing to report: the call itself will get the same error.
            if error.broken:
                self._count_failure(str(error))
