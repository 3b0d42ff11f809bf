"""The sglang engine: token ids in and out of a running SGLang, with contexts in its radix cache.

SGLang has no call to keep or free a prefix for a request of ids, nor to change the order of what
waits. A request carries its place in the plan, its tenant's salt and its session. SGLang's KV
events tell which contexts its cache holds.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

from weftline_engine import api
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointError
from weftline_engine.remote.openai.engine import served
from weftline_engine.remote.openai.remote import AnswerPiece
from weftline_engine.remote.openai.scheduling import EndpointScheduler, headers
from weftline_engine.remote.prefix_cache.engine import PrefixCacheEngine
from weftline_engine.remote.sglang.config import SGLangConfig
from weftline_engine.remote.sglang.facts import GAUGE, SGLangFacts, facts
from weftline_engine.remote.sglang.generate_requests import (
    AnswerReader,
    counts_of_fill,
    fill_body,
    generate_body,
)
from weftline_engine.remote.tokenizer_probe import check_tokenizer

TRIED_BLOCKS = 4  # blocks of the prompt that finds out whether salts part the cache


class SGLangEngine(PrefixCacheEngine):
    """An `api.Engine` on SGLang's native HTTP interface."""

    def __init__(self, config: SGLangConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._facts = SGLangFacts()

    async def start(self) -> api.Description:
        """Connect to SGLang, and describe it. Raises EngineDied."""
        self._endpoint = Endpoint(self._config.connect)
        try:
            self._facts = await facts(self._endpoint)
            model, _ = await served(self._endpoint, self._config.served, "/v1/models")
            await check_tokenizer(self._endpoint, model, self._config.model)
            salts = self._facts.caches and await self._parts_tenants()
        except EndpointError as error:
            await self.close()
            raise api.EngineDied(f"the engine did not start: {error}") from error
        pool = self._facts.kv_tokens
        if self._config.kv_events is not None:
            blocks = None if pool is None else pool // self._facts.block
            self._reports.listen(self._config.kv_events, blocks, salts=False)
        self._watch_gauge(GAUGE, pool)
        return self._description(salts)

    def _description(self, salts: bool) -> api.Description:
        return api.Description(
            **self._described(self._config.model),
            model=self._config.announced,
            context_limit=self._facts.context_limit or 8192,
            kv_tokens=self._facts.kv_tokens,
            max_running=self._config.max_running,
            capabilities=sglang_capabilities(self._facts, salts, self._reports.listens),
        )

    async def _parts_tenants(self) -> bool:
        """Whether equal prompts with other salts share nothing. Older versions ignore the salt."""
        tokens = (1,) * (TRIED_BLOCKS * self._facts.block)
        cached = 0
        for salt in (secrets.token_hex(8), secrets.token_hex(8)):
            op = api.Op(id=salt, kind=api.Kind.FILL, context=salt, salt=salt)
            answer = await self.endpoint.post("/generate", fill_body(op, tokens, self._facts))
            cached = counts_of_fill(answer, len(tokens)).cached
        return cached == 0

    async def _fill_early(self, tokens: tuple[int, ...], op: api.Op) -> None:
        await self.endpoint.post("/generate", fill_body(op, tokens, self._facts))

    async def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        tokens = op.tokens or ()
        if op.kind == api.Kind.FILL:
            answer = await self.endpoint.post("/generate", fill_body(op, tokens, self._facts))
            yield AnswerPiece(
                reason=api.FinishReason.FILLED, counts=counts_of_fill(answer, len(tokens))
            )
            return
        assert op.sampling is not None, "a generate has sampling parameters"
        reader = AnswerReader(op.sampling, self._facts.increments)
        names = headers(EndpointScheduler.SGLANG, op)
        body = generate_body(op, tokens, self._facts)
        async for event in self.endpoint.stream("/generate", body, names):
            yield reader.read(event)
        self._has_made(op, reader.tokens)


def sglang_capabilities(
    told: SGLangFacts, salts: bool, reports: bool
) -> tuple[api.Capability, ...]:
    """Return the capabilities of an SGLang. `salts` says that it parts the caches of tenants, and
    `reports` that its KV events are heard."""
    lacks = {api.Capability.RETENTION, api.Capability.UPDATES}
    if not told.priorities:
        lacks.add(api.Capability.PRIORITY)
    if not salts:
        lacks.add(api.Capability.SALT)
    if not reports:
        lacks.add(api.Capability.REPORTS)
    return tuple(one for one in api.Capability if one not in lacks)
